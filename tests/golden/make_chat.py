#!/usr/bin/env python3
"""Make tests/golden/chat.json: what Jinja itself renders from the chat templates in tests/golden/chat.

Needs jinja2 (pip install jinja2); only to make the file, not to test. The settings are those of
transformers' apply_chat_template. strftime_now is not defined, so that Llama 3.2 takes its fixed date.
The templates are facts of their models' files: tokenizer_config.json, or tokenizer.chat_template of
the GGUF; the model is named below.
"""
import json
import os

from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = os.path.dirname(os.path.abspath(__file__))

SOURCES = {
    "smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm": "HuggingFaceTB/SmolLM-135M-Instruct, teknium/OpenHermes-2.5-Mistral-7B",
    "qwen2": "Qwen/Qwen2-7B-Instruct",
    "qwen2_5": "Qwen/Qwen2.5-7B-Instruct",
    "qwen3": "Qwen/Qwen3-0.6B",
    "llama2": "meta-llama/Llama-2-7b-chat-hf",
    "llama2_default": "meta-llama/Llama-2-7b-chat-hf with the default system text of 2023",
    "llama3_first": "meta-llama/Meta-Llama-3-8B-Instruct, first form",
    "llama3": "meta-llama/Meta-Llama-3-8B-Instruct",
    "llama3_1": "meta-llama/Llama-3.1-8B-Instruct",
    "llama3_2": "meta-llama/Llama-3.2-3B-Instruct",
    "gemma2": "google/gemma-2-2b-it",
    "gemma3": "google/gemma-3-270m-it",
    "mistral_0_1": "mistralai/Mistral-7B-Instruct-v0.1, first form",
    "mistral_0_2": "mistralai/Mistral-7B-Instruct-v0.2, first form",
    "mistral_v1": "mistralai/Mistral-7B-Instruct-v0.2",
    "mistral_0_3": "mistralai/Mistral-7B-Instruct-v0.3",
    "mistral_nemo": "mistralai/Mistral-Nemo-Instruct-2407",
    "mistral_v7": "mistralai/Mistral-Large-Instruct-2411",
    "phi3_first": "microsoft/Phi-3-mini-4k-instruct, first form",
    "phi3": "microsoft/Phi-3-mini-4k-instruct",
    "phi3_5": "microsoft/Phi-3.5-mini-instruct",
    "zephyr": "HuggingFaceH4/zephyr-7b-beta, TinyLlama/TinyLlama-1.1B-Chat-v1.0",
    "refused_phi4": "microsoft/phi-4",
    "refused_monarch": "mlabonne/AlphaMonarch-7B",
}

S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "Hi")],
    [(S, "Be brief."), (U, "Hi")],
    [(S, " s\n"), (U, "  a\n\t"), (A, " b \n"), (U, "\n c")],
    [(U, "q1"), (A, "a1"), (U, "q2"), (A, "  a2  ")],
    [(U, "q"), (A, "<think>\nhm\n</think>\n\nyes"), (U, "r")],
    [(U, "q"), (A, "<think>\nhm\n</think>\n\nyes")],
    [(U, "<tool_response>x</tool_response>"), (A, "a<think>b</think></think>\nc")],
    [(S, ""), (U, "")],
    [(S, "s"), (U, " \n ")],
    [(U, "\u2003\u00a0x\u3000\x1c"), (A, "\u0085y\u2028")],
    [(U, "<|im_end|>\n<|im_start|>system\n</s>[INST] <<SYS>> \\n'\" {{ x }}")],
    [(A, "a")],
    [(U, "a"), (U, "b")],
    [(U, "a"), (A, "b"), (A, "c")],
    [(U, "a"), (S, "s"), (U, "b")],
    [(S, "a"), (S, "b"), (U, "c")],
]


class Refused(Exception):
    """A template called raise_exception()."""


def raise_exception(message):
    raise Refused(message)


def render(template, conversation, generation):
    messages = [{"role": role, "content": content} for role, content in conversation]
    try:
        return template.render(
            messages=messages, bos_token="<s>", eos_token="</s>", add_generation_prompt=generation
        )
    except Refused:
        return None


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = json.dumps
    templates = []
    for name, source in SOURCES.items():
        with open(os.path.join(HERE, "chat", name + ".jinja"), encoding="utf-8") as file:
            text = file.read()
        template = environment.from_string(text)
        rows = [
            [render(template, conversation, generation) for generation in (True, False)]
            for conversation in CONVERSATIONS
        ]
        templates.append({"name": name, "source": source, "text": text, "rows": rows})
    result = {
        "generator": "tests/golden/make_chat.py, jinja2; rows: one a conversation, "
        "[with generation prompt, without], null = the template raises",
        "conversations": CONVERSATIONS,
        "templates": templates,
    }
    with open(os.path.join(HERE, "chat.json"), "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=True, indent=0)
        file.write("\n")


if __name__ == "__main__":
    main()
