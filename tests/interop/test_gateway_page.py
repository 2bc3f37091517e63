"""The lines of docs/gateway.md, run as they stand there, and what a node says to whom they are missing.

    test_gateway_page.py RANKWISE
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

import harness
import tiny_tokenizer

PAGE = harness.HERE.parent.parent / "docs" / "gateway.md"
program = ""


def lines_of_the_page():
    return re.search(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL).group(1)


def network_of_its_own():
    """The page's ports are fixed: a network namespace keeps them apart from whatever else runs here, where that is allowed."""
    command = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with contextlib.suppress(OSError):
        if subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0:
            return command
    return []


def run_shell(text, folder):
    """Its standard output, in a process group that ends with it."""
    path = os.pathsep.join([str(pathlib.Path(program).parent), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    log = folder / "log"
    with log.open("w") as errors:
        shell = subprocess.Popen([*network_of_its_own(), "bash", "-c", text], stdout=subprocess.PIPE, stderr=errors, text=True,
                                 cwd=folder, start_new_session=True,
                                 env={**os.environ, "PATH": path, "MODEL": str(folder / "model"), "HF_HUB_OFFLINE": "1"})
        out = []
        ended = threading.Thread(target=lambda: out.extend(shell.stdout), daemon=True)
        ended.start()
        try:
            shell.wait(60)
            complaint = ""
        except subprocess.TimeoutExpired:
            complaint = "it does not come to its end"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            ended.join(10)
    # What the gateway itself prints is much, and all of it on standard output.
    answers = "".join(line for line in out if not re.match(r"\W*\d{4}-", line))
    return answers, "\n".join([complaint, answers[-2000:], "".join(out)[-2000:], log.read_text()[-4000:]])


class GatewayPage(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_its_lines_end_in_an_answer_of_the_model(self):
        lines = lines_of_the_page()
        self.assertEqual(len(lines.strip().splitlines()), 5, "five lines to a working gateway")
        tiny_tokenizer.write(self.folder / "model")
        text, log = run_shell(lines, self.folder)
        answers = [line for line in text.splitlines() if '"choices"' in line]
        self.assertEqual(len(answers), 1, log)
        answer = json.loads(answers[0])
        self.assertEqual(answer["model"], "my-model")
        self.assertEqual(answer["usage"]["completion_tokens"], 20)
        self.assertEqual(len(answer["choices"][0]["text"]), 20)
        self.assertNotIn("no_tokenizer", log)

    def test_ranks_that_register_their_folder_need_no_option(self):
        lines = lines_of_the_page().replace(' --model-path "$MODEL" --served-model-name my-model', "")
        lines = lines.replace("engine --ranks 2", 'engine --ranks 2 --model-name "$MODEL"')
        lines = lines.replace("my-model", str(self.folder / "model"))
        node, engine, gateway, *rest = lines.splitlines()
        # The gateway asks once, so the ranks must have spoken before.
        lines = "\n".join([node, engine, "until rankwise status | grep -q ^ready; do sleep 0.1; done", gateway, *rest])
        tiny_tokenizer.write(self.folder / "model")
        text, log = run_shell(lines, self.folder)
        self.assertIn('"completion_tokens":20', text.replace(" ", ""), log)

    def test_without_a_tokenizer_the_node_says_what_the_gateway_will_do(self):
        lines = lines_of_the_page().replace(' --model-path "$MODEL"', "")
        lines += "\nrankwise status\n"
        text, log = run_shell(lines, self.folder)
        self.assertIn("tokenizer_load_failed", text, "the page and the warning say that the gateway does this: " + log)
        self.assertIn("\nwarning: model.model_path is not set", text)
        self.assertIn("event=no_tokenizer", log)
        self.assertEqual(log.count("event=no_tokenizer"), 1, "once, not for each rank")


if __name__ == "__main__":
    program = sys.argv[1]
    del sys.argv[1]
    unittest.main()
