"""Built-in chat templates, for models without one, each with the special tokens that it needs."""

from collections.abc import Mapping

CHATML = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}
{{- message.content + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA2 = """\
{%- set system = messages[0].content if messages[0].role == 'system' else none %}
{%- for message in (messages if system is none else messages[1:]) %}
{%- if message.role == 'user' %}
{{- bos_token ~ '[INST] ' }}
{%- if loop.first and system is not none %}{{- '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' }}{% endif %}
{{- message.content | trim + ' [/INST]' }}
{%- elif message.role == 'assistant' %}
{%- generation %}{{ ' ' + message.content | trim + ' ' ~ eos_token }}{% endgeneration %}
{%- else %}
{{- raise_exception('the turns are those of user and assistant, after one of system; got ' + message.role) }}
{%- endif %}
{%- endfor %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content | trim + '<|eot_id|>' }}{% endgeneration %}
{%- else %}
{{- message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

# For any language model. Words mark the turns, so a message can imitate a turn, but never a special token.
PLAIN = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'system' %}{{- message.content | trim + '\\n\\n' }}
{%- elif message.role == 'assistant' %}
{{- 'Assistant:' }}
{%- generation %}{{ ' ' + message.content | trim + '\\n' }}{% endgeneration %}
{%- else %}{{- message.role | capitalize + ': ' + message.content | trim + '\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'Assistant:' }}{% endif %}
"""

BUILTIN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>")),
    "llama2": (LLAMA2, ()),
    "llama3": (LLAMA3, ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "plain": (PLAIN, ()),
}
