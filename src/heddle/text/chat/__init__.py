"""Chat: conversations to ids by the model's own template; control tokens that no text can spell."""

from heddle.text.chat.chat import TEMPLATE, Chat, load_template, named_template, template_controls

__all__ = ["TEMPLATE", "Chat", "load_template", "named_template", "template_controls"]
