"""What tests of the front against clients of other libraries share: servers of their own, and two authorities."""

import pathlib
import tempfile
import unittest

from certificates import Authority
from harness import FrontServer


class FrontCase(unittest.TestCase):
    server_path = ""  # of the program front_server

    def serve(self, *options):
        server = FrontServer(self.server_path, *options)
        self.addCleanup(server.stop)
        return server

    def assert_figures(self, server, **wanted):
        self.assertEqual(server.settled(**wanted), wanted)


class TlsCase(FrontCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.authority = Authority(pathlib.Path(folder.name) / "ours")
        cls.stranger = Authority(pathlib.Path(folder.name) / "strange")
        cls.server_files = cls.authority.issue("server")
        cls.client_files = cls.authority.issue("client")
        cls.stranger_files = cls.stranger.issue("client")

    def serve_tls(self, *options):
        certificate, key = self.server_files
        return self.serve("--step-us", "3000", "--tls-certificate", certificate, "--tls-key", key, *options)
