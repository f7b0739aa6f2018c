# SPDX-License-Identifier: Apache-2.0
"""What an attention program would do on an IPU, and how long it would take: modelled, nothing is run.

request       what is to be planned, checked: the options that all plans take
counting      dry runs of one IPU, and whether it has room
planner       `plan`: one kernel on one shape: tiles, waves, memory, bytes, time
record        what `plan` gives: the record, its row and text
placement     `place_layers`: which layers of a model fit in three tiers
pod           `plan_pod`: attention of all layers of a model over several IPUs
whole_model   `plan_model`: a whole model with its weights; `sparq-ipu plan`
device_model  from counts to seconds
page          the plans of a model as a page of tables and pictures
defaults      settings where none are given
"""

from sparq_ipu.planning.placement import LayerPlacement, place_layers
from sparq_ipu.planning.planner import plan
from sparq_ipu.planning.pod import PodPlan, plan_pod
from sparq_ipu.planning.record import Plan, Stage
from sparq_ipu.planning.request import split
from sparq_ipu.planning.whole_model import ModelPlan, plan_model

__all__ = [
    "LayerPlacement",
    "ModelPlan",
    "Plan",
    "PodPlan",
    "Stage",
    "place_layers",
    "plan",
    "plan_model",
    "plan_pod",
    "split",
]
