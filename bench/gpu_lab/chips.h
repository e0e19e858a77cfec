/* Chips that the shims of Mesa 25.0 do not know, by the numbers that the drivers ask for.
 * amend.py puts this into the sources of those shims. */

#ifdef LAB_AMD

static const struct lab_chip {
   const char *name, *like;
   uint32_t family, revision, major, minor, discovery, engines, units, registers, width;
} lab_chips[] = {
   /* name       like       family rev  gfx    discovery  SE units VGPRs bits */
   {"navi22",   "navi21",  143, 0x32, 10, 3, 0x0a0301, 2, 40, 1024, 192},
   {"navi23",   "navi21",  143, 0x3c, 10, 3, 0x0a0302, 2, 32, 1024, 128},
   {"navi32",   "navi31",  145, 0x20, 11, 0, 0x0b0003, 3, 60, 1536, 256},
   {"navi33",   "navi31",  145, 0x10, 11, 0, 0x0b0002, 2, 32, 1024, 128},
   {"gfx1151",  "gfx1150", 150, 0xc0, 11, 5, 0x0b0501, 2, 40, 1536, 256},
   {"gfx1200",  "navi31",  152, 0x40, 12, 0, 0x0c0000, 2, 32, 1536, 128},
   {"gfx1201",  "navi31",  152, 0x50, 12, 0, 0x0c0001, 4, 64, 1536, 256},
};

/* The entry of a chip made from that of one it resembles. */
static const struct amdgpu_device *
lab_chip(const char *name)
{
   static struct amdgpu_device made;
   for (size_t i = 0; name && i < sizeof(lab_chips) / sizeof(*lab_chips); i++) {
      const struct lab_chip *chip = &lab_chips[i];
      if (strcasecmp(chip->name, name))
         continue;
      for (size_t j = 0; j < num_amdgpu_devices; j++)
         if (!strcasecmp(amdgpu_devices[j].name, chip->like))
            memcpy(&made, &amdgpu_devices[j], sizeof(made));
      struct drm_amdgpu_info_hw_ip *ips[] = {&made.hw_ip_gfx, &made.hw_ip_compute};
      for (int j = 0; j < 2; j++) {
         ips[j]->hw_ip_version_major = chip->major;
         ips[j]->hw_ip_version_minor = chip->minor;
         ips[j]->ip_discovery_version = chip->discovery;
      }
      made.name = chip->name;
      made.dev.family = chip->family;
      made.dev.external_rev = chip->revision;
      made.dev.num_shader_engines = chip->engines;
      made.dev.cu_active_number = chip->units;
      made.dev.num_shader_visible_vgprs = chip->registers;
      made.dev.vram_bit_width = chip->width;
      const uint32_t arrays = chip->engines * made.dev.num_shader_arrays_per_engine;
      made.dev.num_cu_per_sh = (chip->units + arrays - 1) / arrays;
      uint32_t left = chip->units;
      memset(made.dev.cu_bitmap, 0, sizeof(made.dev.cu_bitmap));
      for (uint32_t array = 0; array < arrays && left; array++) {
         const uint32_t here = left < made.dev.num_cu_per_sh ? left : made.dev.num_cu_per_sh;
         made.dev.cu_bitmap[array / 2 % 4][array % 2 + 2 * (array / 8)] = (1u << here) - 1;
         left -= here;
      }
      return &made;
   }
   return NULL;
}

#endif
#ifdef LAB_NVIDIA

static const struct lab_chip {
   const char *name;
   uint32_t chip, groups, pairs; /* GPCs, TPCs: pairs of multiprocessors */
   uint16_t copy, graphics, compute, memory;
} lab_chips[] = {
   {"TU102", 0x162, 6, 34, 0xc5b5, 0xc597, 0xc5c0, 0xa140},
   {"TU104", 0x164, 6, 23, 0xc5b5, 0xc597, 0xc5c0, 0xa140},
   {"TU106", 0x166, 3, 18, 0xc5b5, 0xc597, 0xc5c0, 0xa140},
   {"GA100", 0x170, 7, 54, 0xc6b5, 0xc697, 0xc6c0, 0xa140},
   {"GA102", 0x172, 7, 41, 0xc7b5, 0xc797, 0xc7c0, 0xa140},
   {"GA104", 0x174, 6, 23, 0xc7b5, 0xc797, 0xc7c0, 0xa140},
   {"GA106", 0x176, 3, 14, 0xc7b5, 0xc797, 0xc7c0, 0xa140},
   {"AD102", 0x192, 11, 64, 0xc7b5, 0xc997, 0xc9c0, 0xa140},
   {"AD103", 0x193, 7, 38, 0xc7b5, 0xc997, 0xc9c0, 0xa140},
   {"AD104", 0x194, 5, 23, 0xc7b5, 0xc997, 0xc9c0, 0xa140},
   {"AD106", 0x196, 3, 17, 0xc7b5, 0xc997, 0xc9c0, 0xa140},
   {"AD107", 0x197, 3, 12, 0xc7b5, 0xc997, 0xc9c0, 0xa140},
   {"GB202", 0x1b2, 11, 85, 0xcab5, 0xce97, 0xcec0, 0xcd40},
   {"GB203", 0x1b3, 7, 42, 0xcab5, 0xce97, 0xcec0, 0xcd40},
   {"GB205", 0x1b5, 5, 24, 0xcab5, 0xce97, 0xcec0, 0xcd40},
};

static const struct lab_chip *
lab_chip(uint32_t chip)
{
   for (size_t i = 0; i < sizeof(lab_chips) / sizeof(*lab_chips); i++)
      if (lab_chips[i].chip == chip)
         return &lab_chips[i];
   return NULL;
}

static uint64_t
lab_units(uint32_t chip)
{
   const struct lab_chip *found = lab_chip(chip);
   return found ? found->groups | found->pairs << 8 : 0x01000101;
}

/* The classes of engines that a chip has; there is room for four. */
#define LAB_CLASSES(sclass, chip)                                                                \
   {                                                                                             \
      const struct lab_chip *found = lab_chip(chip);                                             \
      if (found) {                                                                               \
         const uint32_t classes[] = {found->memory, found->copy, 0x902d, found->graphics,        \
                                     found->compute};                                            \
         const int asked = (sclass)->sclass.count;                                               \
         for (int i = 0; i < 5 && i < asked; i++) {                                              \
            (sclass)->sclass.oclass[i].oclass = classes[i];                                      \
            (sclass)->sclass.oclass[i].minver = (sclass)->sclass.oclass[i].maxver = -1;          \
         }                                                                                       \
         (sclass)->sclass.count = asked < 5 ? asked : 5;                                         \
         break;                                                                                  \
      }                                                                                          \
   }

#endif
