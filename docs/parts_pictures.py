"""Draw the two pictures of a loss's parts as SVG: `python docs/parts_pictures.py`."""

import pathlib

import numpy as np

PICTURES = pathlib.Path(__file__).parent / "pages" / "pictures"
COLORS = ("#00796b", "#c2410c", "#4338ca")
STYLE = "font-family='sans-serif' font-size='15' fill='#222'"


def svg(width: int, height: int, title: str, marks: list[str]) -> str:
    """Return a picture on white, with a title for screen readers."""
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img'>"
        f"<title>{title}</title><rect width='{width}' height='{height}' fill='#fff'/>"
        "<defs><marker id='a' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='6' markerHeight='6' "
        "orient='auto-start-reverse'><path d='M0 0L8 4L0 8z' fill='#222'/></marker></defs>"
        f"{''.join(marks)}</svg>\n"
    )


def mark(kind: int, x: float, y: float) -> str:
    """Return the mark of a class: a disc, a square, or a triangle, readable without color."""
    color = COLORS[kind]
    return (
        f"<circle cx='{x:.0f}' cy='{y:.0f}' r='7' fill='{color}'/>",
        f"<rect x='{x - 6:.0f}' y='{y - 6:.0f}' width='12' height='12' fill='{color}'/>",
        f"<path d='M{x:.0f} {y - 8:.0f}l8 14h-16z' fill='{color}'/>",
    )[kind]


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return an arrow from one point to another."""
    points = f"x1='{x1:.0f}' y1='{y1:.0f}' x2='{x2:.0f}' y2='{y2:.0f}'"
    return f"<line {points} stroke='#222' stroke-width='2' marker-end='url(#a)'/>"


def pulls(tightness: bool) -> list[str]:
    """Return three classes with arrows to their centers, or away from each other."""
    generator = np.random.default_rng(3)
    centers = np.array([[75.0, 95.0], [215.0, 85.0], [150.0, 205.0]])
    middle = centers.mean(axis=0)
    marks = []
    for kind, center in enumerate(centers):
        angles = np.arange(5) * 2 * np.pi / 5 + generator.uniform(0, 1)
        radii = generator.uniform(32, 46, 5)
        for angle, radius in zip(angles, radii):
            spot = center + radius * np.array([np.cos(angle), np.sin(angle)])
            marks.append(mark(kind, *spot))
            if tightness:
                marks.append(
                    arrow(*(center + (spot - center) * 0.7), *(center + (spot - center) * 0.25))
                )
        if not tightness:
            outward = (center - middle) / np.linalg.norm(center - middle)
            marks.append(arrow(*center, *(center + 30 * outward)))
    return marks


def panels() -> str:
    """Return the tightness picture next to the contrastive picture."""
    marks = [f"<text x='150' y='25' text-anchor='middle' {STYLE}>tightness: together</text>"]
    marks += pulls(True)
    other = f"<text x='150' y='25' text-anchor='middle' {STYLE}>contrastive: apart</text>"
    marks += ["<g transform='translate(300 0)'>", other, *pulls(False), "</g>"]
    return svg(
        600, 275, "Tightness pulls a class together, contrastive pushes classes apart", marks
    )


def collapses() -> str:
    """Return the result of each part without the other, and of both."""
    generator = np.random.default_rng(1)
    marks = []
    titles = ("only tightness", "only contrastive", "both")
    for panel, title in enumerate(titles):
        marks.append(f"<g transform='translate({200 * panel} 0)'>")
        marks.append(f"<text x='100' y='25' text-anchor='middle' {STYLE}>{title}</text>")
        marks.append("<circle cx='100' cy='120' r='75' fill='none' stroke='#999'/>")
        for number in range(15):
            kind = number % 3
            if panel == 0:
                angle = -1.2 + generator.uniform(-0.16, 0.16)
            elif panel == 1:
                angle = number * 2 * np.pi / 15
            else:
                angle = kind * 2 * np.pi / 3 + generator.uniform(-0.2, 0.2)
            marks.append(mark(kind, 100 + 75 * np.cos(angle), 120 + 75 * np.sin(angle)))
        marks.append("</g>")
    return svg(600, 215, "One spot; all equally far from all; a spot for each class", marks)


if __name__ == "__main__":
    (PICTURES / "parts.svg").write_text(panels())
    (PICTURES / "alone.svg").write_text(collapses())
