"""Chat: conversations to ids by the model's own template; control tokens that no text can spell."""

from heddle.text.chat.chat import TEMPLATE, Chat, find_template, load_template, template_control_tokens
