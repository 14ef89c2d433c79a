"""Golden files of the weight formats (src/formats/testdata), from numpy and ml_dtypes.

Independent of the C++: scalar codecs come from ml_dtypes and numpy's float16, MXFP4 blocks from a
direct reading of the rule (frexp for the scale, nearest value with ties to the even code).

    pip install numpy==2.4.6 ml_dtypes==0.6.0
    python tools/formats_golden/make_golden.py
"""

import pathlib

import ml_dtypes
import numpy as np

OUT = pathlib.Path(__file__).resolve().parents[2] / "src/formats/testdata"
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def hex32(values):
    return [f"{bits:08x}" for bits in np.asarray(values, np.float32).view(np.uint32)]


def fnv1a(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


def write(name, header, lines):
    (OUT / name).write_text(f"# {header}\n" + "\n".join(lines) + "\n")


def probe_values():
    """Every E4M3 value and float16/E4M3 boundary of interest, with its neighbours, both signs."""
    codes = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    middles = (codes[:-1] + codes[1:]) / 2
    halves = np.array([2.0**-25, 2.0**-24, 2.0**-14, 1023.5 * 2.0**-24, 2048 + 1, 2048 + 3, 65504, 65519.996, 65520,
                       1e-30, 1e-45, 447.9, 448, 464, 1e9, 3e38, 0.1, 0.3, 17, 19, 248], np.float32)
    base = np.concatenate([codes, middles, halves]).astype(np.float32)
    around = np.concatenate([base, np.nextafter(base, np.float32(0)), np.nextafter(base, np.float32(3.4e38))])
    around = np.unique(around)
    return np.concatenate([around, -around])


def scalar_files():
    table = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    lines = ["nan" if np.isnan(v) else h for v, h in zip(table, hex32(table))]
    write("e4m3_decode.txt", "float32 bits of each E4M3 byte 0..255 (ml_dtypes.float8_e4m3fn)", lines)

    x = probe_values()
    e4m3 = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    with np.errstate(over="ignore"):
        f16 = x.astype(np.float16).view(np.uint16)
    bf16 = x.astype(ml_dtypes.bfloat16).view(np.uint16)
    write("encode.txt", "float32 bits, E4M3 byte (saturating), float16 bits, bfloat16 bits",
          [f"{h} {a:02x} {b:04x} {c:04x}" for h, a, b, c in zip(hex32(x), e4m3, f16, bf16)])

    # Infinities decode exactly; NaN payloads are not part of the contract, so they are left out.
    half = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    half = half[~np.isnan(half.view(np.float16))]
    write("f16_decode_hash.txt", "FNV-1a 64 over the float32 bytes of all 63490 float16 that are not NaN",
          [f"{len(half)} {fnv1a(half.view(np.float16).astype(np.float32).tobytes())}"])


def mxfp4_row(row):
    """Bytes of one row: data, scales. float64 throughout, so nothing rounds on the way."""
    data, scales = [], []
    for block in row.astype(np.float64).reshape(-1, 32):
        amax = np.abs(block).max()
        exponent = -126  # Quark 0.13 never writes scale byte 0
        if amax > 0:
            mantissa, power = np.frexp(amax)  # amax = mantissa * 2^power, mantissa in [0.5, 1)
            exponent = power - 1 + (1 if mantissa * 2 >= 1.75 else 0) - 2
            exponent = int(np.clip(exponent, -126, 127))
        scales.append(exponent + 127)
        codes = []
        for value in np.abs(block) / 2.0**exponent:
            distance = np.abs(E2M1 - value)
            best = np.flatnonzero(distance == distance.min())
            codes.append(int(best[0] if len(best) == 1 else next(c for c in best if c % 2 == 0)))
        codes = [c | 8 if c and v < 0 else c for c, v in zip(codes, block)]
        data += [low | high << 4 for low, high in zip(codes[0::2], codes[1::2])]
    return data, scales


def fp8_row(row):
    scale = np.float32(np.abs(row).max()) / np.float32(448)
    if scale == 0:
        scale = np.float32(2.0**-23)
    codes = np.clip(row / scale, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    return codes.view(np.uint8), np.array([scale], np.float32).view(np.uint8)


def rows():
    rng = np.random.default_rng(20)
    bf16 = lambda x: np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    yield np.zeros(64)
    yield np.concatenate([np.zeros(32), rng.normal(0, 1, 32)])
    for scale in (1.0, 0.02, 1e-3, 40.0, 1e30, 1e-30, 2.0**-124, 1e-44):
        yield rng.normal(0, scale, 64)
    for _ in range(12):
        yield bf16(rng.normal(0, 0.02, 64))
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    yield np.concatenate([ties, -ties, ties / 2, -ties / 4, ties * 0.99, ties * 1.01, -ties, ties])
    for amax in (0.75, 0.875, 1.0, 1.74, 1.75, 2.0, 3.5, 4.0, 6.0, 6.01, 6.99, 7.0, 8.0, 448.0):
        yield np.concatenate([[amax], rng.uniform(-amax, amax, 62), [-amax]])
    yield np.full(64, np.finfo(np.float32).max)


def row_file(name, encode):
    lines = []
    for row in rows():
        row = np.asarray(row, np.float32)
        data, scales = encode(row)
        lines.append(" ".join(["".join(hex32(row)), bytes(data).hex(), bytes(scales).hex()]))
    write(name, "64 float32 (bits), packed data, scales", lines)


if __name__ == "__main__":
    scalar_files()
    row_file("mxfp4_rows.txt", mxfp4_row)
    row_file("fp8_rows.txt", fp8_row)
