# SPDX-License-Identifier: Apache-2.0
"""What `bench/hardware_day.py` is made of: see docs/hardware_day.md.

records      the run directory: one JSON line for each thing that happened, on disk before the next
items        what a part measures, one by one; runs in a process of its own
conduct      runs the parts, restarts and stops them, names what went wrong
parts        the list of parts, and for each a module: environment, bits, vertices, rules, programs, poptorch
page, pack   the page of measured, modelled and ratio; the archive that is sent
fit          the device model from a day, for calibrate.py --day
"""
