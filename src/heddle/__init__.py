"""Heddle: one library for the whole line of neural language models, from the LSTM to the mixture of experts."""
