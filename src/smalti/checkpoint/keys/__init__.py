"""Keys and hyperparameters of networks that stand beside a model: ControlNets, TAESD, upscalers."""

from smalti.checkpoint.keys.controlnet import controlnet_config
from smalti.checkpoint.keys.taesd import taesd_config, taesd_renaming
from smalti.checkpoint.keys.upscalers import upscaler_config, upscaler_renaming

__all__ = ["controlnet_config", "taesd_config", "taesd_renaming", "upscaler_config",
           "upscaler_renaming"]
