"""What transformers computes for small random models, and for SmolLM2: the tests' reference.

Needs torch, transformers, gguf and safetensors, and nothing of this project:

    python make_transformers_reference.py tiny
    python make_transformers_reference.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python make_transformers_reference.py exported FOLDER

`tiny` writes `models/<name>` as transformers saves them, with the logits of a batch. `exported`
loads what `paced_jax.policy.hf.save` has written, one folder for each of those models, and adds the
logits. `smollm2` writes the greedy continuation of twenty prompts.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]

HERE = Path(__file__).parent
VOCABULARY = 37
COMMON = dict(
    vocab_size=VOCABULARY,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=64,
    initializer_range=0.3,
    bos_token_id=0,
    eos_token_id=1,
)
MODELS = {
    "llama_tied": ("Llama", dict(tie_word_embeddings=True, rope_theta=1e5, rms_norm_eps=1e-5)),
    "llama_untied": ("Llama", dict(tie_word_embeddings=False, head_dim=8)),
    "qwen2_tied": ("Qwen2", dict(tie_word_embeddings=True, rope_theta=1e6)),
    "qwen2_untied": ("Qwen2", dict(tie_word_embeddings=False, rms_norm_eps=1e-6)),
}
PROMPTS = [
    "3 + 4 = 7\n12 + 5 = 17\n9 + 6 =",
    "2 * 3 = 6\n4 * 5 = 20\n7 * 8 =",
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n",
    "Water boils at",
    "The opposite of hot is",
    "1, 2, 3, 4,",
    "A haiku about the sea:\n",
    "import numpy as np\n",
    "Q: What is 15 - 7?\nA:",
    "In 1969, humans first",
    "Der Hund ist",
    "x^2 - 5x + 6 = 0 has the roots",
    "<|im_start|>user\nHow many legs has a spider?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nAdd 17 and 25.<|im_end|>\n<|im_start|>assistant\n",
    "Roses are red,",
    "  indented text\n\n  and more",
    "naïve café – 北京",
    "The speed of light is approximately 299,792,458",
]


def stirred(model, seed):
    """The model with norms and biases that are not their starting values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def tokens():
    """Three sequences of eleven tokens."""
    return np.random.default_rng(5).integers(0, VOCABULARY, (3, 11))


def logits(model):
    """Of the last layer, float32."""
    with torch.no_grad():
        return model(torch.tensor(tokens())).logits.numpy()


def make_tiny():
    """Writes the four models."""
    for seed, (name, (family, options)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config = getattr(transformers, f"{family}Config")(**COMMON, **options)
        model = stirred(getattr(transformers, f"{family}ForCausalLM")(config), seed)
        folder = HERE / "models" / name
        # One of them in several files, with an index.
        size = "10KB" if name == "qwen2_untied" else "5GB"
        model.save_pretrained(folder, max_shard_size=size)
        np.savez(folder / "reference.npz", tokens=tokens(), logits=logits(model))


def add_exported(exported):
    """Loads what was exported and adds its logits."""
    for name in MODELS:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            exported / name, dtype=torch.float32
        )
        path = HERE / "models" / name / "reference.npz"
        with np.load(path) as stored:
            content = dict(stored)
        np.savez(path, **(content | {"exported_logits": logits(model.eval())}))
        print(name, np.abs(content["logits"] - logits(model)).max())


def make_smollm2(path):
    """Writes the greedy continuations."""
    where = dict(pretrained_model_name_or_path=str(path.parent), gguf_file=path.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    rows = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        with torch.no_grad():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=16,
                do_sample=False,
                output_scores=True,
                return_dict_in_generate=True,
            )
        best = torch.stack(out.scores, 1)[0].topk(2).values
        rows.append(
            {
                "prompt": prompt,
                "tokens": ids[0].tolist(),
                "continuation": out.sequences[0, ids.shape[1] :].tolist(),
                "smallest_lead": float((best[:, 0] - best[:, 1]).min()),
            }
        )
        print(prompt, "->", tokenizer.decode(rows[-1]["continuation"]), rows[-1]["smallest_lead"])
    content = {
        "file": path.name,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "max_new_tokens": 16,
        "rows": rows,
    }
    (HERE / "smollm2_greedy.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "tiny":
        make_tiny()
    elif what == "exported":
        add_exported(Path(rest[0]))
    else:
        make_smollm2(Path(rest[0]))
