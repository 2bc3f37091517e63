"""Our .proto files against the real packages: every field by number, name, type and presence, every method.

    test_contract.py DESCRIPTOR_SET      as protoc --include_imports --descriptor_set_out writes it
"""

import sys
import unittest

from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from smg_grpc_proto.generated import common_pb2, sglang_scheduler_pb2

ours = descriptor_pool.DescriptorPool()


def shape_of_field(field):
    kind = field.message_type or field.enum_type
    return (field.name, field.type, kind.full_name if kind else "", field.is_repeated, field.has_presence,
            field.containing_oneof.name if field.containing_oneof else "")


def shape_of_message(message):
    return {field.number: shape_of_field(field) for field in message.fields}


def reachable_messages(services):
    """Messages of one file set that a call can carry."""
    seen = {}
    waiting = [kind for service in services for method in service.methods
               for kind in (method.input_type, method.output_type)]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen or message.full_name.startswith("google."):
            continue
        seen[message.full_name] = message
        waiting.extend(field.message_type for field in message.fields if field.message_type)
    return seen


class Contract(unittest.TestCase):
    def compare_services(self, theirs, package_in_ours=None):
        for service in theirs:
            mine = ours.FindServiceByName(service.full_name)
            self.assertEqual(
                {m.name: (m.input_type.full_name, m.output_type.full_name, m.client_streaming, m.server_streaming)
                 for m in mine.methods},
                {m.name: (m.input_type.full_name, m.output_type.full_name, m.client_streaming, m.server_streaming)
                 for m in service.methods}, service.full_name)

    def compare_messages(self, theirs):
        self.assertTrue(theirs)
        for name, message in theirs.items():
            with self.subTest(name):
                self.assertEqual(shape_of_message(ours.FindMessageTypeByName(name)), shape_of_message(message))
                for field in message.fields:
                    if field.enum_type:
                        mine = ours.FindEnumTypeByName(field.enum_type.full_name)
                        self.assertEqual({v.number: v.name for v in mine.values},
                                         {v.number: v.name for v in field.enum_type.values}, field.full_name)

    def test_scheduler_service(self):
        services = list(sglang_scheduler_pb2.DESCRIPTOR.services_by_name.values())
        self.compare_services(services)
        messages = reachable_messages(services)
        self.assertGreater(len(messages), 60)
        self.compare_messages(messages)
        # Nothing of ours that they do not know.
        mine = reachable_messages([ours.FindServiceByName(service.full_name) for service in services])
        self.assertEqual(set(mine), set(messages))

    def test_common_messages(self):
        names = set(ours.FindFileByName("io/front/smg_common.proto").message_types_by_name)
        self.compare_messages({message.full_name: message for message
                               in common_pb2.DESCRIPTOR.message_types_by_name.values() if message.name in names})
        self.assertLessEqual(names, set(common_pb2.DESCRIPTOR.message_types_by_name))

    def test_health(self):
        services = [health_pb2.DESCRIPTOR.services_by_name["Health"]]
        # Newer definitions have more methods than the two that everybody speaks.
        mine = {m.name for m in ours.FindServiceByName(services[0].full_name).methods}
        self.assertEqual(mine, {"Check", "Watch"})
        self.compare_messages({name: message for name, message in reachable_messages(services).items()
                               if name.startswith("grpc.health.v1.HealthCheck")})

    def test_reflection(self):
        services = list(reflection_pb2.DESCRIPTOR.services_by_name.values())
        self.compare_services(services)
        self.compare_messages(reachable_messages(services))
        alpha = ours.FindFileByName("io/front/grpc_reflection_v1alpha.proto").message_types_by_name
        stable = ours.FindFileByName("io/front/grpc_reflection_v1.proto").message_types_by_name
        for name, message in alpha.items():
            # The stable version is the same under another package name.
            strip = lambda shape: {n: (f[0], f[1], f[2].rpartition(".")[2], *f[3:]) for n, f in shape.items()}
            self.assertEqual(strip(shape_of_message(stable[name])), strip(shape_of_message(message)), name)


if __name__ == "__main__":
    with open(sys.argv.pop(1), "rb") as file:
        for proto in descriptor_pb2.FileDescriptorSet.FromString(file.read()).file:
            ours.Add(proto) if hasattr(ours, "Add") else ours.AddSerializedFile(proto.SerializeToString())
    unittest.main()
