"""Makes a model that needs no download: a Llama of 128 dimensions with a tokenizer of its own, for vLLM on CPU.

Run by the Python of the environment that has `tokenizers`: `python tiny_model.py FOLDER`. Weights are left to
`--load-format dummy`. The same Python makes the same tokenizer: it is trained on the standard library's sources.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
CONTEXT = 4096
_SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
_TEMPLATE = (
    "<|begin|>{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
_SOURCES = 400


def make(folder: Path) -> None:
    """Writes config, tokenizer and chat template into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:_SOURCES]
    tokenizer.train([str(path) for path in sources], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    begin, end = 0, 1
    _write(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "vocab_size": VOCABULARY,
            "max_position_embeddings": CONTEXT,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "bos_token_id": begin,
            "eos_token_id": end,
            "torch_dtype": "float32",
        },
    )
    _write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _SPECIAL[begin],
            "eos_token": _SPECIAL[end],
            "model_max_length": CONTEXT,
            "chat_template": _TEMPLATE,
        },
    )
    _write(folder / "generation_config.json", {"bos_token_id": begin, "eos_token_id": end})


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
