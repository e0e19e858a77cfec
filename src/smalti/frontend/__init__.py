"""Other people's model formats become graphs: ONNX."""
