# SPDX-License-Identifier: Apache-2.0
"""What an attention program would do on an IPU, and how long it would take: modelled, nothing is run.

request       the checked options that all plans take
counting      dry runs of one IPU, and whether it has room
planner       `plan`: one kernel on one shape: tiles, waves, memory, bytes, time
record        what `plan` gives: the record, its row and text
pod           `plan_pod`: attention of all layers of a model over several IPUs
whole_model   `plan_model`: a whole model with its weights; `sparq-ipu plan`
model_plan    what `plan_model` gives: the record, its row and text
device_model  from counts to seconds, and their range
"""

from sparq_ipu.planning.model_plan import ModelPlan
from sparq_ipu.planning.planner import plan
from sparq_ipu.planning.pod import PodPlan, plan_pod
from sparq_ipu.planning.record import Plan, Stage
from sparq_ipu.planning.whole_model import plan_model

__all__ = ["ModelPlan", "Plan", "PodPlan", "Stage", "plan", "plan_model", "plan_pod"]
