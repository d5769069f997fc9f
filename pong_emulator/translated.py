"""Pong's program as compiled functions, translated on the first start and then cached."""

import importlib.util
import sys
from typing import Any
from uuid import uuid4

from .compiling import folder
from .control_flow import Program
from .rom import ALWAYS, INDIRECT, PICTURE_END, read_rom
from .translate import translate

HEADER = f'''"""Pong, translated from its machine code by {__package__}; not to be edited."""

from {__package__}.bus import load, load_far, rom
from {__package__}.compiling import compiled
from {__package__}.riot import set_timer, timer
from {__package__}.state import *
from {__package__}.tia import *


'''


def source() -> str:
    """Return the translation as Python."""
    return HEADER + translate(Program(read_rom(), PICTURE_END, INDIRECT, ALWAYS))


def _load() -> Any:
    file = folder() / "pong.py"
    if not file.exists():
        part = file.with_suffix(f".{uuid4().hex}")  # processes may do the same at once
        part.write_text(source())
        part.replace(file)
    spec = importlib.util.spec_from_file_location(f"{__package__}.pong_translated", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


emulated_frame = _load().emulated_frame
