# SPDX-License-Identifier: Apache-2.0
"""What the headers define themselves, without the library: views, names, options, fields of codelets,
vectors, and what inline functions pass on. A change of a header shows here soon: these programs alone are
built.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import builds
import pytest

EMULATOR = Path(__file__).resolve().parents[1]

EXPECTED = {
    ("inline", "-std=c++11"): """\
arrays|2 2 3 9
array|3 4 6 5 1 0 2 2
string|0 1 0 1 1 0 abac 0 b 1
interval|[2:5) 3 2 5 1 1 1 0 0 0
variable|7 0 1 1 1 0 0 1 2
rearranger|0
type|1 0 1 1 0 2
float|4 4 1 1 0 0
unsigned short|2 0 0 0 1
bool|1 1 1 0 1 0
quarter|1 0 1 0
path|a/b a x a/c a/c/d a/c/e a/b/f a/b/g alone a/b
place|1 0 1 x.cpp
ids|1 3 1 4 5 6 1 0 0
streams|1 0 1 0
replicas|3
flow|2.5 1 1 2
options|2 3 1 1 a 1
no option|out_of_range
cleared|0
behaviour|1 1 1 0 1 1 0 0 1 0
print|1000 3 75 8 1 9 1 1 2 3 4 , ( )
estimate|5 0 6 7
callback|0 0 1 9 1
host function|1 1
unknown_field|vertex V has no field 'f'
index_error|slice: index out of range, got 4
no_size_specified|field 'f' of vertex V has no size
load|cannot load a.gp: gone
symbol|symbol s not found on tile 3
link|text output
action|1
base|1 1 0 profiling is disabled
contexts|6 0 7 10
layouts|1 1 1 0 0 0 1 1
""",
    ("of_codelets", "-std=c++17 -ffp-contract=off -D__POPC__"): """\
scalars|1 2 20 33 20 33
size_t|5 6
vector|3 false 54 33 3 true true
empty|0 true true 0
one pointer|4 4 4 true
list|2 1 3 4 2 20
written|2 7 true false 1
kinds|6 true false
by element|1 3 5 7 -1
assigned|3 -1 -3
compared|-1 -1 0 0 -1 0 0 -1
halves|2048 0.00999451
integers|1 32 -6 2 5 32 8
converted|1 6
worker|11 4 6 5
random|2 565199490
normal|true true
even|true true
bounds|1 3 0 -2 2 1
functions|8 3 0 1 0 0.5 0 true true false
half|2 3 65504 -65504 true 1 26624
limits|65504 -65504 11 true true true inf false
quarter|true 1 -1 true 7 -28672 3 128
scalar|0 0 16 0 0 0 0
vector of|1 1 15 2 0 8 0
lists|2 3 6 0 0 0 0
state|3 1 7 0 0 0 0
rows|0 4 1 0 2 0 0
plain|3 0 3 0 0 0 0
offset|true
kind|1 2 0
called|true false true poplar_codelet_tables poplar_codelet_worker poplar_codelet_half_overflow
""",
    ("passed_on", "-std=c++17"): """\
slice|2 5 0
slice|3 4 0
slice|3 6 1
getConstantValue|true 2 false 7 true
checkConstantSize|3 3
addConstant|2 1 1.5 4 false <const>
addConstant|2 2 1.5 4 false named
addConstant|2 1 2.5 4 true <const>
checkMetadata|1 addConstant
checkConstantSize|3 3
addConstant|1 1 1.5 4 false a
checkMetadata|1 addConstant
addConstant|1 1 3.5 4 true <const>
connectConstant|4.5 true
setFieldInitialValue|5.5 1 4 false
setFieldInitialValue|1.5 3 4 true
setTensorInitialValue|6.5 1 4 true
setTensorInitialValue|1.5 3 4 false
getMaxVertexFieldValue|V f
as|2
readTensor|r 8
writeTensor|w 24
connectStream|s 24
checkRemoteRow|from 8
copyFromRemoteBuffer|from 4 1
checkRemoteRow|to 24
copyToRemoteBuffer|to 5 0
target|true false false 65504 -3.5 0
model|ipu2 1 1472 6 638976 1.85e+09 4 8 15 false
field|13 1 1.5 2.5
convertFromDeviceType|3
convertFromDeviceType of quarter|3
convertFromDeviceType of quarter to double|2
convertToDeviceType of quarter|2 1.5 true
convertToDeviceType of quarter|3 1.5 false
Number|3
Boolean|true
String|c
String|s
other|false true
key|k
element|2
""",
}


@pytest.mark.parametrize(("program", "flags"), EXPECTED)
def test_headers_alone(program, flags, tmp_path):
    compiler = builds.compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    include = [f"-I{EMULATOR / folder}" for folder in ("include", "popc")]
    source = EMULATOR / "tests" / "headers" / f"{program}.cpp"
    warnings = ["-Wall", "-Wextra", "-Werror"]
    built = [
        *compiler.split(),
        *flags.split(),
        *warnings,
        *include,
        str(source),
        "-o",
        str(tmp_path / program),
    ]
    subprocess.run(built, check=True)
    done = subprocess.run([tmp_path / program], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.splitlines() == EXPECTED[program, flags].splitlines()
