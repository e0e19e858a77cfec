"""What files hold that Smalti does not read: the names that matter, with small shapes."""

from __future__ import annotations

Shapes = dict[str, tuple[int, ...]]

UNET = "model.diffusion_model."

UNREAD: dict[str, list[Shapes]] = {
    "wan": [{"head.modulation": (1, 2, 8), "patch_embedding.weight": (8, 16, 1, 2, 2),
             "blocks.0.self_attn.q.weight": (8, 8)}],
    "hunyuan": [{"txt_in.individual_token_refiner.blocks.0.norm1.weight": (8,),
                 "double_blocks.0.img_attn.qkv.weight": (24, 8)},
                {"context_embedder.token_refiner.refiner_blocks.0.norm1.weight": (8,),
                 "single_transformer_blocks.0.proj_out.bias": (8,)}],
    "hunyuan3d": [{"latent_in.weight": (8, 64), "double_blocks.0.img_mod.lin.weight": (48, 8),
                   "double_blocks.0.img_attn.qkv.weight": (24, 8)}],
    "bria": [{"time_embed.timestep_embedder.linear_1.weight": (8, 256),
              "single_transformer_blocks.0.proj_out.bias": (8,), **more} for more in (
                  {"context_embedder.weight": (8, 4096)},
                  {"caption_projection.0.linear.weight": (8, 8)})],
    "ltx": [{UNET + "adaln_single.emb.timestep_embedder.linear_1.bias": (8,),
             UNET + "transformer_blocks.0.attn1.to_q.weight": (8, 8)}],
    "pixart": [{"t_block.1.weight": (48, 8), "blocks.0.attn.qkv.weight": (24, 8)},
               {"adaln_single.emb.timestep_embedder.linear_1.bias": (8,),
                "pos_embed.proj.bias": (8,), "transformer_blocks.0.attn1.to_q.weight": (8, 8)}],
    "sana": [{"t_block.1.weight": (48, 8), "attention_y_norm.weight": (8,)}],
    "qwen-image-layered": [{"transformer_blocks.0.img_mod.1.weight": (48, 8),
                            "txt_norm.weight": (8,),
                            "time_text_embed.addition_t_embedding.weight": (2, 8)}],
    "mage-flow": [{"transformer_blocks.0.img_mod.1.weight": (48, 8), "txt_norm.weight": (2560,)}],
    "cosmos": [{"blocks.0.adaln_modulation_self_attn.1.weight": (8, 8)},
               {"net.blocks.0.adaln_modulation_self_attn.1.weight": (8, 8)},
               {"transformer_blocks.0.norm1.linear_1.weight": (8, 8)}],
    "ideogram": [{"embed_image_indicator.weight": (2, 8)}],
    "hidream": [{"caption_projection.0.linear.weight": (8, 8)}],
    "auraflow": [{"model.double_layers.0.attn.w1q.weight": (8, 8)}],
    "omnigen2": [{"ref_image_patch_embedder.weight": (8, 64)}],
    "kolors": [{"conv_in.weight": (8, 4, 3, 3), "encoder_hid_proj.weight": (16, 4096),
                "add_embedding.linear_1.weight": (8, 5632),
                "down_blocks.0.resnets.0.conv1.bias": (8,)}],
    "cascade": [{"clip_txt_mapper.weight": (8, 8), "down_blocks.0.0.depthwise.weight": (8, 1)}],
    "ip-adapter": [{"image_proj.proj.weight": (32, 8), "ip_adapter.1.to_k_ip.weight": (8, 8)}],
    "pulid": [{"pulid_ca.0.to_q.weight": (8, 8)}],
    "motion": [{"down_blocks.0.motion_modules.0.temporal_transformer.norm.weight": (8,)}],
    "image-encoder": [{"vision_model.embeddings.class_embedding": (8,),
                       "vision_model.embeddings.patch_embedding.weight": (8, 3, 4, 4)}],
    "umt5": [{"shared.weight": (64, 8),
              **{f"encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight": (32, 2)
                 for i in (0, 1)}},
             {"token_embd.weight": (64, 8), "enc.blk.0.attn_rel_b.weight": (32, 2),
              "enc.blk.1.attn_rel_b.weight": (32, 2)},
             {"token_embedding.weight": (64, 8), "blocks.0.attn.q.weight": (8, 8),
              "blocks.0.pos_embedding.embedding.weight": (32, 2)}],
    "swinir": [{"conv_after_body.weight": (8, 8, 3, 3), "conv_first.bias": (8,)}],
    "gfpgan": [{"params_ema.stylegan_decoder.style_conv1.bias": (8,)}],
    "codeformer": [{"params_ema.ft_layers.0.linear1.weight": (8, 8)}],
    "depth": [{"pretrained.blocks.0.norm1.weight": (8,), "depth_head.projects.0.bias": (8,)}],
    "sam": [{"image_encoder.blocks.0.norm1.weight": (8,),
             "mask_decoder.mask_tokens.weight": (4, 8)}],
    "yolo": [{"model.22.dfl.conv.weight": (1, 16, 1, 1)}],
    "wan22-vae": [{"decoder.middle.0.residual.0.gamma": (8, 1, 1, 1),
                   "decoder.upsamples.0.upsamples.0.residual.2.weight": (8, 8, 3, 3, 3)}],
}
"""Kind -> such files."""
