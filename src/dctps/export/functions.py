"""The recipes of weights as local functions of ONNX, so that a layer costs a few nodes and a few bytes of them.

A runtime writes the bodies in place of the nodes when it loads a file. All inputs are constants, so it computes the
weights once, at load, and runs as it would with stored weights.

    Count   count -> 0, 1, 2, ..., as first + step i
    Sums    gaps -> increasing numbers: the first one, then the differences from one to the next
    Slots   the place on the line of length q of each entry of a patch, as `core/patch_offset.py` defines it
    Waves   F[k, p] = norm_k cos(2 pi f_k (2 p + shift) / period - phase), the angle reduced in integers
    Walsh   F[k, p] = norm (-1)^(number of one bits that k and p have in common)
    Signs   D with its columns multiplied by random signs, which are stored as bits
    Scaled  scale D, of a layer without values
    Weight  scale D + S: the values added at their positions, which are stored as gaps
    Sparse  S alone, of a layer without an offset
"""

import functools
from typing import Any

from dctps.base.extras import needed

DOMAIN = "dctps"
DOMAIN_VERSION = 1
OPSET = 18
IR_VERSION = 8  # the first one with local functions
FLOAT, INT32, INT64 = 1, 6, 7  # the numbers of types in ONNX

_BODIES = {  # each comes after those that it calls, because some readers look for no function behind its caller
    "Count": """<first, step, count> () => (y) {
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        n = Constant<value_int: int = @count>()
        a = Constant<value_int: int = @first>()
        b = Constant<value_int: int = @step>()
        i = Range(zero, n, one)
        bi = Mul(i, b)
        y = Add(bi, a)
    }""",
    "Sums": f"""(gaps) => (y) {{
        axis = Constant<value_int = 0>()
        wide = Cast<to = {INT64}>(gaps)
        y = CumSum(wide, axis)
    }}""",
    "Slots": """<channels, taps, by_channel, by_tap> () => (y) {
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        upright = Constant<value_ints = [-1, 1]>()
        all = Constant<value_ints = [-1]>()
        cn = Constant<value_int: int = @channels>()
        tn = Constant<value_int: int = @taps>()
        cb = Constant<value_int: int = @by_channel>()
        tb = Constant<value_int: int = @by_tap>()
        c = Range(zero, cn, one)
        t = Range(zero, tn, one)
        cc = Mul(c, cb)
        tt = Mul(t, tb)
        column = Reshape(cc, upright)
        grid = Add(column, tt)
        y = Reshape(grid, all)
    }""",
    "Waves": f"""<period, shift, unit, phase, norm, odd, odd_norm> (f, p) => (y) {{
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        two = Constant<value_int = 2>()
        upright = Constant<value_ints = [-1, 1]>()
        n = Constant<value_int: int = @period>()
        s = Constant<value_int: int = @shift>()
        u = Constant<value_float: float = @unit>()
        ph = Constant<value_float: float = @phase>()
        usual = Constant<value_float: float = @norm>()
        other = Constant<value_float: float = @odd_norm>()
        row = Constant<value_int: int = @odd>()
        pp = Mul(p, two)
        j = Add(pp, s)
        column = Reshape(f, upright)
        product = Mul(column, j)
        turns = Mod(product, n)
        real = Cast<to = {FLOAT}>(turns)
        turned = Mul(real, u)
        angle = Sub(turned, ph)
        wave = Cos(angle)
        rows = Size(f)
        i = Range(zero, rows, one)
        is_odd = Equal(i, row)
        norms = Where(is_odd, other, usual)
        scale = Reshape(norms, upright)
        y = Mul(wave, scale)
    }}""",
    "Walsh": f"""<norm> (k, p) => (y) {{
        two = Constant<value_int = 2>()
        upright = Constant<value_ints = [-1, 1]>()
        powers = Constant<value_ints = [{", ".join(str(1 << i) for i in range(40))}]>()
        usual = Constant<value_float: float = @norm>()
        even = Constant<value_float = 2.0>()
        kc = Reshape(k, upright)
        pc = Reshape(p, upright)
        kd = Div(kc, powers)
        pd = Div(pc, powers)
        kb = Mod(kd, two)
        pb = Mod(pd, two)
        kf = Cast<to = {FLOAT}>(kb)
        pf = Cast<to = {FLOAT}>(pb)
        pt = Transpose<perm = [1, 0]>(pf)
        common = MatMul(kf, pt)
        parity = Mod<fmod = 1>(common, even)
        down = Mul(parity, even)
        one = Constant<value_float = 1.0>()
        sign = Sub(one, down)
        y = Mul(sign, usual)
    }}""",
    "Signs": f"""<count, per_channel, shape> (d, bits) => (y) {{
        upright = Constant<value_ints = [-1, 1]>()
        all = Constant<value_ints = [-1]>()
        start = Constant<value_ints = [0]>()
        n = Constant<value_ints: ints = @count>()
        columns = Constant<value_ints: ints = @per_channel>()
        patch = Constant<value_ints: ints = @shape>()
        powers = Constant<value_ints = [128, 64, 32, 16, 8, 4, 2, 1]>()
        two = Constant<value_int = 2>()
        minus = Constant<value_float = -2.0>()
        one = Constant<value_float = 1.0>()
        wide = Cast<to = {INT64}>(bits)
        column = Reshape(wide, upright)
        shifted = Div(column, powers)
        planes = Mod(shifted, two)
        flat = Reshape(planes, all)
        cut = Slice(flat, start, n)
        real = Cast<to = {FLOAT}>(cut)
        down = Mul(real, minus)
        signs = Add(down, one)
        table = Reshape(signs, columns)
        spread = Expand(table, patch)
        line = Reshape(spread, all)
        y = Mul(d, line)
    }}""",
    "Scaled": f"""<shape> (d, scale) => (y) {{
        upright = Constant<value_ints = [-1, 1]>()
        sizes = Constant<value_ints: ints = @shape>()
        real = Cast<to = {FLOAT}>(scale)
        column = Reshape(real, upright)
        product = Mul(d, column)
        y = Reshape(product, sizes)
    }}""",
    "Weight": f"""<shape> (d, scale, gaps, values) => (y) {{
        scaled = {DOMAIN}.Scaled<shape: ints = @shape>(d, scale)
        all = Constant<value_ints = [-1]>()
        sizes = Constant<value_ints: ints = @shape>()
        flat = Reshape(scaled, all)
        at = {DOMAIN}.Sums(gaps)
        real = Cast<to = {FLOAT}>(values)
        sum = ScatterElements<axis = 0, reduction = "add">(flat, at, real)
        y = Reshape(sum, sizes)
    }}""",
    "Sparse": f"""<shape> (gaps, values) => (y) {{
        all = Constant<value_ints = [-1]>()
        sizes = Constant<value_ints: ints = @shape>()
        zeros = ConstantOfShape(sizes)
        flat = Reshape(zeros, all)
        at = {DOMAIN}.Sums(gaps)
        real = Cast<to = {FLOAT}>(values)
        sum = ScatterElements<axis = 0, reduction = "add">(flat, at, real)
        y = Reshape(sum, sizes)
    }}""",
}
NEEDS = {"Weight": ("Scaled", "Sums"), "Sparse": ("Sums",)}


@functools.cache
def function(name: str) -> Any:  # onnx.FunctionProto
    """Return a function of ONNX by its name."""
    parser = needed("onnx.parser", "an ONNX file")
    head = f'<opset_import: ["" : {OPSET}, "{DOMAIN}" : {DOMAIN_VERSION}], domain: "{DOMAIN}">'
    return parser.parse_function(f"{head} {name} {_BODIES[name]}")


def functions_of(names: set[str]) -> list[Any]:
    """Return the functions of these names, with those that they call, in the order of this file."""
    used = names | {called for name in names for called in NEEDS.get(name, ())}
    return [function(name) for name in _BODIES if name in used]
