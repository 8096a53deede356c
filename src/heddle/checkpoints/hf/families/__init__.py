"""Model families of Hugging Face, one file each: config and weight names, both ways."""
