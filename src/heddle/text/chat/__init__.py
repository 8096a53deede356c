"""Chat: conversations encoded by the model's chat template; no message can inject special tokens."""

from heddle.text.chat.chat import (
    TEMPLATE,
    Chat,
    find_template,
    load_template,
    parse_template,
    template_control_tokens,
)
