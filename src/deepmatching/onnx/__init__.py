"""Models as ONNX files, for programs without PyTorch (the extra ``onnx``)."""

from deepmatching.onnx.writing import OPSET, Summary, check_onnx_suffix, export_descriptor, export_network, load_onnx

__all__ = ["OPSET", "Summary", "check_onnx_suffix", "export_descriptor", "export_network", "load_onnx"]
