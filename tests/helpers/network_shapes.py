"""The weight shapes of the paper's networks (10 classes), in module order: what allocations are checked on."""

Shapes = list[tuple[int, ...]]


def vgg19() -> Shapes:
    widths = [64, 64, 128, 128, 256, 256, 256, 256] + [512] * 8
    return [(m, n, 3, 3) for n, m in zip([3, *widths], widths, strict=False)] + [(10, 512)]


def resnet18() -> Shapes:
    shapes: Shapes = [(64, 3, 3, 3)]
    width = 64
    for planes, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        for block in range(2):
            shapes += [(planes, width, 3, 3), (planes, planes, 3, 3)]
            if block == 0 and (stride != 1 or width != planes):
                shapes.append((planes, width, 1, 1))
            width = planes
    return [*shapes, (10, 512)]


def resnet50() -> Shapes:
    shapes: Shapes = [(64, 3, 3, 3)]
    width = 64
    for planes, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += [(planes, width, 1, 1), (planes, planes, 3, 3), (4 * planes, planes, 1, 1)]
            if block == 0:
                shapes.append((4 * planes, width, 1, 1))
            width = 4 * planes
    return [*shapes, (10, 2048)]


def mobilenetv2() -> Shapes:
    rows = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    shapes: Shapes = [(32, 3, 3, 3)]
    width = 32
    for expansion, out, repeats, first_stride in rows:
        for block in range(repeats):
            planes, stride = expansion * width, first_stride if block == 0 else 1
            shapes += [(planes, width, 1, 1), (planes, 1, 3, 3), (out, planes, 1, 1)]
            if stride == 1 and width != out:
                shapes.append((out, width, 1, 1))
            width = out
    return [*shapes, (1280, 320, 1, 1), (10, 1280)]


def fixup_resnet110() -> Shapes:
    shapes: Shapes = [(16, 3, 3, 3)]
    width = 16
    for planes in (16, 32, 64):
        for _ in range(18):
            shapes += [(planes, width, 3, 3), (planes, planes, 3, 3)]
            width = planes
    return [*shapes, (10, 64)]


def lenet() -> Shapes:
    return [(6, 3, 5, 5), (16, 6, 5, 5), (120, 16, 5, 5), (82, 120), (10, 82)]


NETWORKS = {
    "resnet50": resnet50(),
    "vgg19": vgg19(),
    "resnet18": resnet18(),
    "mobilenetv2": mobilenetv2(),
    "fixup_resnet110": fixup_resnet110(),
    "lenet": lenet(),
}
