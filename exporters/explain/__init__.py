"""Why a run's figures are what they are: client and engine read together, by rules that stand in `rules.yaml`.

It reads nothing but a run, so that the report (which may not import `vllm_launch`) and the command of `vllm_launch`
share it. `figures` takes a run's figures, `rules` the rules, `findings` brings both together.
"""

from exporters.explain.findings import Finding, explain, findings_text, trial_text

__all__ = ["Finding", "explain", "findings_text", "trial_text"]
