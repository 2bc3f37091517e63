"""Makes the real SGLang package importable on a machine without torch and without a GPU.

`import stand_ins` before the first import of sglang. Packages that are too large to install for a test (ABSENT_PACKAGES)
are answered with blanks: names that can be imported, called, subclassed, indexed and compared, and do nothing. A package
that is installed is never replaced. SGLang's own top-level __init__ is skipped, because it patches some of those packages;
everything below it (message structs, sampling parameters, msgpack hooks) is the real code.
"""

import abc
import importlib.machinery
import importlib.metadata
import os
import sys
import types

# What the import chain of sglang.srt.managers.io_struct asks for without a way around it. Optional accelerators are not
# here: SGLang must find them missing.
ABSENT_PACKAGES = frozenset("""
    torch torchvision transformers triton tvm_ffi IPython huggingface_hub sentencepiece safetensors compressed_tensors gguf
    openai partial_json_parser filelock jinja2
""".split())

# Attributes whose value decides what SGLang does at import.
KNOWN_VALUES = {
    "torch.__version__": "2.14.1",
    "torch.version.cuda": None,
    "torch.version.hip": None,
    "triton.__version__": "3.8.0",
    "transformers.__version__": "5.19.0",
    "torch.cuda.is_available": lambda *a, **k: False,
    "torch.cuda.device_count": lambda *a, **k: 0,
    "torch.xpu.is_available": lambda *a, **k: False,
    "torch.backends.mps.is_available": lambda *a, **k: False,
    "torch.library.Library().m.name": "sglang",
}
# Probed with hasattr(torch, ...): must look missing.
MISSING_NAMES = frozenset("torch." + name for name in ("npu", "mps", "hpu", "musa", "mlu", "gcu", "corex"))


def _dunder(name):
    return name.startswith("__") and name.endswith("__")


class _Blank(abc.ABCMeta):
    """Metaclass of blanks. A subclass that SGLang derives from a blank is an ordinary class again."""

    def _is_blank(cls):
        return "_blank_name" in cls.__dict__

    def __getattr__(cls, name):
        if _dunder(name) or not cls._is_blank():
            raise AttributeError(name)
        value = _lookup(f"{cls.__dict__['_blank_name']}.{name}")
        type.__setattr__(cls, name, value)
        return value

    def __call__(cls, *args, **kwargs):
        if not cls._is_blank():
            return super().__call__(*args, **kwargs)
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            given = args[0]
            if not (isinstance(given, _Blank) and given._is_blank()):
                return given  # used as a decorator
        return blank(cls.__dict__["_blank_name"] + "()")

    def register(cls, *args, **kwargs):
        if not cls._is_blank():
            return super().register(*args, **kwargs)
        return lambda given: given

    # The result of a call is falsy ("is it available?" no), a name is truthy ("is it imported?" yes).
    def __bool__(cls):
        return not cls.__dict__.get("_blank_name", "").endswith("()")

    def __index__(cls):
        return 0

    __int__ = __index__

    def __float__(cls):
        return 0.0

    def __len__(cls):
        return 0

    def __iter__(cls):
        return iter(())

    def __contains__(cls, _):
        return False

    def __getitem__(cls, _):
        return cls

    def __setitem__(cls, *_):
        pass

    def __enter__(cls):
        return cls

    def __exit__(cls, *_):
        return False


for _name in ("lt", "le", "gt", "ge"):
    setattr(_Blank, f"__{_name}__", lambda cls, other: False)
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "pow", "mod"):
    setattr(_Blank, f"__{_name}__", lambda cls, other: cls)
_Blank.__neg__ = lambda cls: cls


def blank(full_name):
    module, _, short = full_name.rpartition(".")
    body = {
        "_blank_name": full_name,
        "__module__": module or full_name,
        "__init_subclass__": classmethod(lambda cls, **kwargs: None),
        "__class_getitem__": classmethod(lambda cls, item: cls),
        "__getattr__": _instance_attribute,
        "__get_pydantic_core_schema__": classmethod(lambda cls, source, handler: {"type": "any"}),
    }
    return _Blank(short.replace("()", "_result") or "blank", (), body)


def _instance_attribute(self, name):
    # Of an object whose class SGLang derived from a blank.
    if _dunder(name):
        raise AttributeError(name)
    return blank(f"{type(self).__name__}().{name}")


def _lookup(full_name):
    if full_name in KNOWN_VALUES:
        return KNOWN_VALUES[full_name]
    if full_name in MISSING_NAMES:
        raise AttributeError(full_name)
    return blank(full_name)


class _BlankModule(types.ModuleType):
    def __getattr__(self, name):
        full_name = f"{self.__name__}.{name}"
        if _dunder(name) and full_name not in KNOWN_VALUES:
            raise AttributeError(full_name)
        if full_name in sys.modules:
            return sys.modules[full_name]
        value = _lookup(full_name)
        setattr(self, name, value)
        return value


class _BlankFinder:
    """At the end of sys.meta_path: asked only for what is not installed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ABSENT_PACKAGES:
            return importlib.machinery.ModuleSpec(name, _BlankFinder, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        module = _BlankModule(spec.name)
        module.__path__ = []
        return module

    @staticmethod
    def exec_module(module):
        pass


class _SglangFinder:
    """At the front of sys.meta_path: an empty sglang package over the real folder, and no model executor."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "sglang.srt.managers.scheduler":
            return importlib.machinery.ModuleSpec(name, _SglangFinder)
        if name != "sglang":
            return None
        real = importlib.machinery.PathFinder.find_spec("sglang")
        if real is None:
            return None
        spec = importlib.machinery.ModuleSpec("sglang", _SglangFinder, origin=real.origin, is_package=True)
        spec.submodule_search_locations = list(real.submodule_search_locations)
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        if module.__name__ == "sglang":
            module.__version__ = importlib.metadata.version("sglang")
        else:
            module.Scheduler = None


os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("SGLANG_USE_PICKLE_IPC", "0")  # the dial-in wire is msgpack
sys.meta_path.insert(0, _SglangFinder)
sys.meta_path.append(_BlankFinder)
