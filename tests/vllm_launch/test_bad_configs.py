"""Every mistake in a config ends the command with exit code 2 and one line that names place and mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailgate.exits import run_command
from tests.vllm_launch.commands import launch
from vllm_launch.__main__ import main
from vllm_launch.config import load_config

NO_SUCH = "vllm serve 0.32 has no such flag"

FILES = {
    "a key with a typo": (
        "extends: h100-llama-8b-baseline\nargz:\n  max-num-seqs: 4\n",
        "c.yaml:2: unknown key 'argz'; did you mean 'args'?",
    ),
    "no model": (
        "device: cpu\n",
        "c.yaml:1: the key 'model' is missing; add it, or extend a config that has it",
    ),
    "a device that is none": (
        "model: x\ndevice: h100\n",
        "c.yaml:2: device: unknown device 'h100'; did you mean 'h100-sxm'?",
    ),
    "extends nothing": (
        "extends: h100-llama-8b-baselin\n",
        "c.yaml:1: extends: there is no launch config 'h100-llama-8b-baselin'; did you mean 'h100-llama-8b-baseline'?",
    ),
    "extends itself": (
        "about: a\nextends: c.yaml\n",
        "c.yaml:2: extends: 'c.yaml' extends this file again; break the circle",
    ),
    "a circle of two": (
        "extends: d.yaml\n",
        "d.yaml:1: extends: 'c.yaml' extends this file again; break the circle",
    ),
    "a fault in the extended file": (
        "extends: faulty.yaml\n",
        "faulty.yaml:3: args.max-num-seq: unknown to vLLM 0.32; did you mean 'max-num-seqs'?",
    ),
    "a key given twice": (
        "extends: h100-llama-8b-baseline\nargs:\n  max-num-seqs: 4\n  max-num-seqs: 8\n",
        "c.yaml:4: not valid YAML: the key 'max-num-seqs' stands twice; keep one of them; mend that line",
    ),
    "a list": (
        "- a\n",
        "c.yaml:1: expected a mapping of keys to values; write 'key: value' lines",
    ),
    "a note on nothing": (
        "extends: h100-llama-8b-baseline\nnotes:\n  max-num-seqs: why\n",
        "c.yaml:3: notes.max-num-seqs: a note on a flag that is not set; set the flag under 'args:' or remove the note",
    ),
    "a version nobody recorded": (
        "extends: h100-llama-8b-baseline\nvllm: '0.8'\n",
        "c.yaml:2: vllm: no flag list is recorded for vLLM 0.8; recorded: 0.32, 0.33",
    ),
    "limits that contradict each other": (
        "extends: h100-llama-8b-baseline\nargs:\n  max-num-batched-tokens: 16\n  max-num-seqs: 32\n",
        (
            "c: max-num-batched-tokens (16) is below max-num-seqs (32), which vLLM refuses at start; "
            "raise the first or lower the second"
        ),
    ),
    "an environment variable that is on": (
        "extends: h100-llama-8b-baseline\nenv:\n  VLLM_USE_V1: yes\n",
        "c.yaml:3: env.VLLM_USE_V1: input should be a valid string, got True; put it in quotes",
    ),
    "an environment variable that no system can set": (
        "extends: h100-llama-8b-baseline\nenv:\n  A=B: '1'\n",
        ("c.yaml:3: env.A=B: no system can set such a variable; a name has no '=', and neither part a NUL"),
    ),
    "a version that is a number": (
        "extends: h100-llama-8b-baseline\nvllm: 0.32\n",
        "c.yaml:2: vllm: input should be a valid string, got 0.32; put it in quotes",
    ),
    "one flag in two spellings": (
        "extends: h100-llama-8b-baseline\nargs:\n  max_num_seqs: 4\n  max-num-seqs: 8\n",
        "c.yaml:4: args.max-num-seqs: the same flag as 'max_num_seqs' above; keep one of them",
    ),
    "an address with a port that is none": (
        "url: http://127.0.0.1:99999\n",
        ("c.yaml:1: url: no address of a server (port out of range 0-65535); write it like http://127.0.0.1:8000"),
    ),
    "an address with credentials": (
        "url: http://me:s3cr3t@127.0.0.1:8000\n",
        (
            "c.yaml:1: url: credentials do not belong in an address; write it like http://127.0.0.1:8000, and set "
            "OPENAI_API_KEY in the environment"
        ),
    ),
}

FLAGS = [
    # What blog posts say: each of these was tried on the real parser, which rejects it.
    (
        "enable-metrics: true",
        (
            f"enable-metrics: {NO_SUCH}: vLLM always serves its metrics at /metrics on the API port "
            "(SGLang is the one with this flag); remove this line"
        ),
    ),
    (
        "metrics-port: 9000",
        (
            f"metrics-port: {NO_SUCH}: vLLM always serves its metrics at /metrics on the API port, never on another "
            "one; remove this line"
        ),
    ),
    (
        "max-batch-tokens: 512",
        (
            f"max-batch-tokens: {NO_SUCH}: what bounds a step is the number of tokens batched in it; "
            "use 'max-num-batched-tokens'"
        ),
    ),
    (
        "max-num-partial-prefills: 2",
        (
            f"max-num-partial-prefills: {NO_SUCH}: gone from vLLM; how much of a long prompt one step takes is bounded "
            "by its threshold; use 'long-prefill-token-threshold'"
        ),
    ),
    (
        "swap-space: 4",
        (
            f"swap-space: {NO_SUCH}: vLLM V1 never swaps to CPU memory; a preempted request is computed again; "
            "remove this line"
        ),
    ),
    (
        "num-scheduler-steps: 8",
        (
            f"num-scheduler-steps: {NO_SUCH}: multi-step scheduling was V0's and is gone; async-scheduling, on by "
            "default, hides the scheduler's time now; remove this line"
        ),
    ),
    (
        "batch_size_dynamic: true",
        f"batch_size_dynamic: {NO_SUCH}: batching is always continuous; remove this line",
    ),
    # Spelling.
    ("max-num-seq: 4", "max-num-seq: unknown to vLLM 0.32; did you mean 'max-num-seqs'?"),
    ("--max-num-seqs: 4", "--max-num-seqs: flags are written without dashes here; write 'max-num-seqs:'"),
    (
        "disable-prefix-caching: true",
        "disable-prefix-caching: unknown to vLLM 0.32; did you mean 'enable-prefix-caching'?",
    ),
    (
        "no-enable-prefix-caching: true",
        "no-enable-prefix-caching: a flag is switched off by its value; write 'enable-prefix-caching: false'",
    ),
    ("zzz: 1", "zzz: unknown to vLLM 0.32; see `vllm serve --help=all` for what there is"),
    # Values.
    ("max-num-seqs: many", "max-num-seqs: takes a whole number, got 'many'; mend that value"),
    ("max-num-seqs: true", "max-num-seqs: takes a whole number, got True; mend that value"),
    ("max-num-seqs: 0", "max-num-seqs: 0 is out of range; give a value at least 1"),
    ("enforce-eager: 'yes'", "enforce-eager: takes true or false, got 'yes'; mend that value"),
    (
        "max-num-batched-tokens: lots",
        (
            "max-num-batched-tokens: takes a whole number (8192, or 8k for 8,000, 8K for 8,192), got 'lots'; "
            "mend that value"
        ),
    ),
    (
        "gpu-memory-utilization: 1.5",
        "gpu-memory-utilization: 1.5 is out of range; give a value between 0.01 and 1.0",
    ),
    ("gpu-memory-utilization: .nan", "gpu-memory-utilization: takes a number, got nan; mend that value"),
    ("scheduling-policy: fair", "scheduling-policy: 'fair' is no choice of vLLM 0.32; one of: fcfs, priority"),
    ("kv-cache-dtype: fp9", "kv-cache-dtype: 'fp9' is no choice of vLLM 0.32; did you mean 'fp8'?"),
    ("speculative-config: 7", "speculative-config: takes a mapping, got 7; mend that value"),
    # What does not belong there.
    (
        "api-key: sk-1",
        "api-key: a secret does not belong in a config file; set VLLM_API_KEY in the environment",
    ),
    ("port: 9", "port: not to be set under 'args:'; the launcher sets it; give --port to serve"),
    ("model: x", "model: not to be set under 'args:'; write it as 'model:' at the top of the file"),
]


@pytest.mark.parametrize("case", FILES)
def test_a_faulty_file_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    text, line = FILES[case]
    (tmp_path / "c.yaml").write_text(text)
    (tmp_path / "d.yaml").write_text("extends: c.yaml\n")
    (tmp_path / "faulty.yaml").write_text("extends: h100-llama-8b-baseline\nargs:\n  max-num-seq: 4\n")
    ended = launch("check", "c.yaml", cwd=tmp_path)
    assert (ended.code, ended.out, ended.err) == (2, "", f"vllm_launch: {line}\n")


@pytest.mark.parametrize(("flag", "line"), FLAGS, ids=[flag for flag, _ in FLAGS])
def test_a_faulty_flag_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, line: str
) -> None:
    (tmp_path / "c.yaml").write_text(f"extends: h100-llama-8b-baseline\nargs:\n  {flag}\n")
    monkeypatch.chdir(tmp_path)
    code = run_command(lambda: main(["check", "c.yaml"]), "vllm_launch")
    said = capsys.readouterr()
    assert (code, said.out, said.err) == (2, "", f"vllm_launch: c.yaml:3: args.{line}\n")


def test_a_note_may_be_spelled_as_its_flag_is(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "extends: h100-llama-8b-baseline\nargs: {max_num_seqs: 4}\nnotes: {max_num_seqs: Why.}\n"
    )
    assert load_config(str(tmp_path / "c.yaml")).notes["max-num-seqs"] == "Why."


def test_a_secret_in_a_config_is_not_repeated_on_the_screen(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("extends: h100-llama-8b-baseline\nargs:\n  hf-token: hf_s3cr3t\n")
    ended = launch("check", "c.yaml", cwd=tmp_path)
    assert ended.code == 2
    assert "s3cr3t" not in ended.out + ended.err


def test_an_unknown_config_names_the_nearest_or_all() -> None:
    near = launch("check", "h100-llama-8b-tunned")
    assert (near.code, near.err) == (
        2,
        "vllm_launch: there is no launch config 'h100-llama-8b-tunned'; did you mean 'h100-llama-8b-tuned'?\n",
    )
    far = launch("check", "zzz")
    assert far.code == 2
    assert "see: python -m vllm_launch list" in far.err
    missing = launch("check", "none/c.yaml")
    assert (missing.code, missing.err) == (
        2,
        ("vllm_launch: none/c.yaml: No such file or directory; give the path of a YAML file that can be read\n"),
    )
