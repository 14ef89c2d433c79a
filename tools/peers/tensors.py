"""Reading and writing safetensors with numpy alone, including the types numpy has no name for.

A tensor is (dtype, shape, raw): raw is a uint8 array of the file's bytes (a memory map when read)."""
import json
import struct

import numpy as np

BYTES = {"F32": 4, "BF16": 2, "U8": 1}


def read(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    data = np.memmap(path, np.uint8, "r", 8 + size)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def write(path, items, produce):
    """items: [(name, dtype, shape)]. produce(name) gives the bytes, so one tensor at a time is in memory."""
    items = sorted(items, key=lambda item: (-BYTES[item[1]], item[0]))  # the widest first: all aligned
    header, end = {}, 0
    for name, dtype, shape in items:
        begin, end = end, end + BYTES[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, _, _ in items:
            raw = produce(name).tobytes()
            begin, end = header[name]["data_offsets"]
            assert len(raw) == end - begin, name
            file.write(raw)


def to_f32(dtype, shape, raw):
    if dtype == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    assert dtype == "F32", dtype
    return raw.view(np.float32).reshape(shape)
