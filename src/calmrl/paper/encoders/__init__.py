"""Encoders that run the official code of their authors: ImageBind, LanguageBind, InternVideo."""
