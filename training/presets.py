"""Sizes of the models, settings of the runs and the words that captions are made of."""

# SD 1's latent scale; what is stored in a file has unit variance after multiplication with it.
LATENT_SCALE = 0.18215
TRAIN_STEPS = 1000
CLIP_TOKENS = 49408
START_TOKEN, END_TOKEN, CONTEXT = 49406, 49407, 77

# The models of `emoji-256`, before its latents had 12 channels (`--latents`) and its
# autoencoder a fifth level (`--px`), and the batches that
# two processor cores learn from.
SHIPPED = dict(
    px=128,
    vae=dict(ch=(16, 32, 64, 64), lpb=1, groups=8, z=4),
    unet=dict(ch=(64, 128, 192), lpb=1, attn=(0, 1, 1), heads=8, groups=32),
    text=dict(width=128, layers=3, heads=4),
    vae_batch=16, vae_lr=2e-3, vae_crop=64, batch=16, ema=0.999)

PRESETS = {
    # Two processor cores, about an hour.
    "cpu128": dict(
        SHIPPED, lr=8e-4, warmup=200,
        styles="fluent3d", vae_styles="noto,fluentflat,fluentmodern,notov1", bank_k=1,
        p_flip=0.0, p_bg=0.0, p_hue=0.0, p_pair=0.0, jitter=0.0, plain_w=1.0,
        scenes=0, regular=0.0, centred=0.0, moved=0.0, painted=0.0, plain=1.0,
        start="", concepts=""),
    # From finished weights of those sizes: things put together. `scenes` are drawn beside the short
    # list, of which `plain` is the share; several things stand at regular places in a share
    # `regular`, one fills the picture in a share `centred`, in a share `moved` of these nearly and
    # beside the middle (as do pairs and threes), and has another colour in a share `painted`.
    "compose128": dict(
        SHIPPED, lr=5e-4, warmup=100,
        styles="fluent3d", vae_styles="fluentflat", scenes=10_000, plain=0.3, regular=0.85,
        centred=1.0, moved=1.0, painted=0.5, start="emoji-256.safetensors",
        concepts="concepts.txt"),
    # One large graphics processor, from nothing: the same scenes, four times the pixels.
    "gpu256": dict(
        px=256,
        vae=dict(ch=(32, 64, 128, 128), lpb=1, groups=8, z=4),
        unet=dict(ch=(96, 192, 256), lpb=1, attn=(1, 1, 1), heads=8, groups=32),
        text=dict(width=128, layers=4, heads=4),
        vae_batch=64, vae_lr=1e-3, vae_crop=128, batch=512, lr=1.2e-3, ema=0.9995, warmup=400,
        styles="fluent3d,fluentflat", vae_styles="", scenes=60_000, plain=0.1, regular=0.6,
        centred=0.3, moved=1.0, painted=0.5, start="", concepts="concepts.txt"),
    # The same code in a minute, to test the script itself.
    "smoke": dict(
        px=64,
        vae=dict(ch=(16, 32, 32, 32), lpb=1, groups=8, z=4),
        unet=dict(ch=(32, 64), lpb=1, attn=(1, 1), heads=4, groups=16),
        text=dict(width=64, layers=1, heads=2),
        vae_batch=8, vae_lr=2e-3, vae_crop=64, batch=8, lr=1e-3, ema=0.99, warmup=10,
        styles="fluent3d,noto", vae_styles="", bank_k=3,
        p_flip=0.3, p_bg=0.3, p_hue=0.5, p_pair=0.4, jitter=0.1, plain_w=2.0,
        scenes=60, regular=0.6, centred=0.6, moved=0.5, painted=0.5, plain=0.4,
        start="", concepts=""),
}
# Minutes of (vae, text, unet) where the command line does not say.
MINUTES = {"cpu128": (18, 4, 50), "compose128": (0, 3, 45), "gpu256": (6, 1, 18),
           "smoke": (0.15, 0.1, 0.2)}

PROMPTS = [
    "a red apple", "banana", "a cat face", "dog", "pizza", "a red car", "rocket", "sunflower",
    "house", "tree", "guitar", "a green book", "smiling face", "red heart", "airplane", "an owl",
    "red heart", "blue heart", "broken heart", "grinning face", "crying face", "angry face",
    "smiling face with sunglasses", "a pizza", "a tomato", "strawberry", "sun", "full moon",
    "fire", "ghost", "skull", "basketball", "soccer ball", "tv", "christmas tree", "cactus",
    "mountain", "umbrella", "key", "star", "pig face", "frog", "penguin", "elephant", "ship",
    "bus", "blue circle", "orange book",
]

COMPOSED_PROMPTS = [
    "a red apple", "a cat", "a dog", "a red car", "two dogs", "two pizzas", "three cats",
    "three stars", "four bananas", "four apples", "a dog and a cat", "an apple and a banana",
    "a house and a tree", "a rocket and a full moon", "a cat right of a house",
    "a star left of a tree", "a bird above a house", "a car under a cloud", "a cat on a chair",
    "a penguin on a cake", "a cat on a blue background", "a car on a green background",
    "a tree on a black background", "a blue background", "a green cat", "a red star",
    "a purple fish", "a blue house", "a dog, flat design", "outline of a cat",
    "a car, pixel art", "a small owl",
]

STYLE_WORDS = {
    "fluent3d": ["3d render", "3d", "glossy 3d"],
    "noto": ["cartoon", "noto emoji"],
    "fluentflat": ["flat icon", "flat design"],
    "fluentmodern": ["soft vector illustration", "gradient icon"],
    "notov1": ["blob cartoon", "android blob"],
}
HUES = {"red": 0, "orange": 28, "yellow": 50, "green": 125, "cyan": 180, "blue": 218,
        "purple": 272, "pink": 325}
BACKGROUNDS = {
    "white": (255, 255, 255), "black": (20, 20, 24), "gray": (150, 150, 150),
    "red": (226, 60, 60), "orange": (250, 160, 70), "yellow": (252, 224, 90),
    "green": (90, 190, 100), "blue": (70, 130, 230), "light blue": (170, 215, 250),
    "pink": (250, 180, 205), "purple": (150, 100, 215), "beige": (240, 228, 205),
}
COLOUR_WORDS = set(
    "red orange yellow green blue purple pink black white brown gray grey golden cyan".split())
MILD_WORDS = ("cute big small little beautiful shiny simple nice colorful single tiny lovely "
              "funny old new happy").split()
OPENINGS = ["a photo of ", "a picture of ", "an image of ", "a drawing of ",
            "an illustration of ", "a 3d render of ", "a painting of ", "an emoji of ",
            "an icon of "]
CLOSINGS = [", 3d render", " emoji", ", glossy 3d", " icon", ", 3d", " on a white background",
            ", white background", ", isolated", ", high quality"]

# Groups of emoji that show one solid thing, and subgroups that are signs rather than pictures.
CORE_GROUPS = {"animals-nature", "food-drink", "travel-places", "activities", "objects",
               "smileys-emotion"}
SIGN_SUBGROUPS = {
    "alphanum", "keycap", "arrow", "av-symbol", "zodiac", "math", "punctuation", "currency",
    "transport-sign", "other-symbol", "gender", "time", "religion", "family", "person-symbol"}
