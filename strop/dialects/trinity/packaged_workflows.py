"""Workflows that Trinity registers by name and that are classes of its package, trinity-rft."""

from __future__ import annotations

from collections.abc import Mapping

_CLASSES = {
    "math_rm_workflow": "math_rm_workflow.MathRMWorkflow",
    "math_ruler_workflow": "math_ruler_workflow.MathRULERWorkflow",
    "math_trainable_ruler_workflow": "math_trainable_ruler_workflow.MathTrainableRULERWorkflow",
    "math_based_model_workflow": "math_workflows.MathBasedModelWorkflow",
    "rubric_judge_workflow": "rubric_judge_workflow.RubricJudgeWorkflow",
    "tool_call_workflow": "customized_toolcall_workflows.ToolCallWorkflow",
    "toolcall_workflow": "customized_toolcall_workflows.ToolCallWorkflow",
    "sudoku_workflow": "sudoku_workflow.SudokuWorkflow",
    "on_policy_distill_workflow": "on_policy_distill_workflow.OnPolicyDistillWorkflow",
    "on_policy_distill_math_workflow": "on_policy_distill_workflow.OnPolicyDistillMathWorkflow",
    "agentscope_workflow_adapter": "agentscope_workflow.AgentScopeWorkflowAdapter",
    "agentscope_workflow_adapter_v1": "agentscope_workflow.AgentScopeWorkflowAdapterV1",
    "agentscope_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
    "as_react_workflow": "agentscope.react.react_workflow.AgentScopeReActWorkflow",
    "agentscope_react_math_workflow": "envs.agentscope.agentscopev1_react_workflow.AgentScopeReactMathWorkflow",
    "agentscopev0_react_math_workflow": "envs.agentscope.agentscopev0_react_workflow.AgentScopeV0ReactMathWorkflow",
    "agentscope_v1_react_search_workflow": "envs.agentscope.agentscopev1_search_workflow."
    "AgentScopeV1ReactSearchWorkflow",
    "email_search_workflow": "envs.email_searcher.workflow.EmailSearchWorkflow",
    "alfworld_workflow": "envs.alfworld.alfworld_workflow.AlfworldWorkflow",
    "step_wise_alfworld_workflow": "envs.alfworld.alfworld_workflow.StepWiseAlfworldWorkflow",
    "RAFT_alfworld_workflow": "envs.alfworld.RAFT_alfworld_workflow.RAFTAlfworldWorkflow",
    "RAFT_reflect_alfworld_workflow": "envs.alfworld.RAFT_reflect_alfworld_workflow.RAFTReflectAlfworldWorkflow",
    "frozen_lake_workflow": "envs.frozen_lake.workflow.FrozenLakeWorkflow",
    "sciworld_workflow": "envs.sciworld.sciworld_workflow.SciWorldWorkflow",
    "webshop_workflow": "envs.webshop.webshop_workflow.WebShopWorkflow",
}
PACKAGED: Mapping[str, str] = {name: f"trinity.common.workflows.{path}" for name, path in _CLASSES.items()}
"""The class of each workflow in Trinity's package. A configuration with one is read; `--check` names the class."""
