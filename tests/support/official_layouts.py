"""Write tiny datasets in the layouts of the published datasets."""

import numpy as np

GROCERIES = (
    "Class Name (str),Class ID (int),Coarse Class Name (str),Coarse Class ID (int),"
    "Iconic Image Path (str),Product Description Path (str)\n"
)


def write_image(path, content=b""):
    """Write a file; it can be empty, because the loaders do not open it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def write_cub(root, class_ids=(1, 1, 2, 101, 102), content=b""):
    """Write CUB-200-2011 with one image for each class id; image i has a box at (i, 2i)."""
    images, labels, boxes = [], [], []
    for image, class_id in enumerate(class_ids, start=1):
        path = f"{class_id:03}.Bird_{class_id}/Bird_{image:04}.jpg"
        write_image(root / "images" / path, content)
        images.append(f"{image} {path}\n")
        labels.append(f"{image} {class_id}\n")
        boxes.append(f"{image} {image}.0 {2 * image}.0 30.0 20.0\n")
    (root / "images.txt").write_text("".join(images))
    (root / "image_class_labels.txt").write_text("".join(labels))
    (root / "bounding_boxes.txt").write_text("".join(boxes))
    lines = (f"{class_id} {class_id:03}.Bird_{class_id}\n" for class_id in range(1, 201))
    (root / "classes.txt").write_text("".join(lines))
    return root


def write_mat(path, class_ids, path_field, paths, **replaced):
    """Write a list of Cars-196: image i has a box from (i, 2i) to (i + 29, 2i + 19)."""
    from scipy.io import savemat

    columns = {
        "bbox_x1": list(range(1, len(class_ids) + 1)),
        "bbox_y1": [2 * i for i in range(1, len(class_ids) + 1)],
        "bbox_x2": [i + 29 for i in range(1, len(class_ids) + 1)],
        "bbox_y2": [2 * i + 19 for i in range(1, len(class_ids) + 1)],
        "class": list(class_ids),
        path_field: paths,
    } | replaced
    entries = np.empty((1, len(class_ids)), [(name, object) for name in columns])
    for name, values in columns.items():
        entries[name][0] = values
    names = np.empty((1, 196), object)
    names[0] = [f"Car {number}" for number in range(1, 197)]
    savemat(path, {"annotations": entries, "class_names": names})


def write_cars(root, class_ids=(1, 1, 2, 99, 100), path_field="relative_im_path", **replaced):
    """Write Cars-196 as cars_annos.mat and car_ims/, with one image for each class id."""
    paths = [f"car_ims/{image:06}.jpg" for image in range(1, len(class_ids) + 1)]
    for path in paths:
        write_image(root / path)
    write_mat(root / "cars_annos.mat", class_ids, path_field, paths, **replaced)
    return root


def write_cars_devkit(root, train_ids=(1, 99, 2), test_ids=(100, 1)):
    """Write Cars-196 as devkit/, cars_train/, and cars_test/, with one image for each class id."""
    (root / "devkit").mkdir(parents=True, exist_ok=True)
    for side, ids, name in (
        ("train", train_ids, "devkit/cars_train_annos.mat"),
        ("test", test_ids, "cars_test_annos_withlabels.mat"),
    ):
        paths = [f"{image:05}.jpg" for image in range(1, len(ids) + 1)]
        for path in paths:
            write_image(root / f"cars_{side}" / path)
        write_mat(root / name, ids, "fname", paths)
    write_mat(root / "devkit" / "cars_meta.mat", [1], "fname", ["-"])
    return root


def write_sop(root, train_ids=(1, 1, 2), test_ids=(3, 4, 3, 4), content=b""):
    """Write Stanford Online Products with one image for each class id."""
    image = 0
    for side, ids in (("train", train_ids), ("test", test_ids)):
        lines = ["image_id class_id super_class_id path\n"]
        for class_id in ids:
            image += 1
            path = f"chair_final/{class_id}_{image}.JPG"
            write_image(root / path, content)
            lines.append(f"{image} {class_id} 3 {path}\n")
        (root / f"Ebay_{side}.txt").write_text("".join(lines))
    return root


def write_inshop(root, train=(1, 1, 2), query=(3, 4), gallery=(4, 3, 3), content=b""):
    """Write In-Shop with one image for each item."""
    lines = []
    for status, items in (("train", train), ("query", query), ("gallery", gallery)):
        for item in items:
            path = f"img/WOMEN/Tees/id_{item:08}/{len(lines):02}_1_front.jpg"
            write_image(root / path, content)
            lines.append(f"{path:<60} id_{item:08} {status}\n")
    head = f"{len(lines)}\nimage_name item_id evaluation_status\n"
    (root / "list_eval_partition.txt").write_text(head + "".join(lines))
    return root


def write_groceries(root, train=(0, 0, 1), val=(1, 41), test=(42, 41, 42, 41), content=b""):
    """Write the Grocery Store Dataset with one photo for each class id, and 81 in its catalog.

    Class ids 2k and 2k + 1 belong to the coarse class k.
    """

    def name(class_id):
        return f"Fruit/Kind_{class_id // 2}/Kind_{class_id}"

    lines = [GROCERIES]
    for class_id in range(81):
        picture = f"iconic-images-and-descriptions/{name(class_id)}/Kind_{class_id}"
        write_image(root / f"{picture}_Iconic.jpg", content)
        paths = f"/{picture}_Iconic.jpg,/{picture}_Description.txt"
        lines.append(f"Kind_{class_id},{class_id},Kind_{class_id // 2},{class_id // 2},{paths}\n")
    (root / "classes.csv").write_text("".join(lines))
    for side, ids in (("train", train), ("val", val), ("test", test)):
        lines = []
        for image, class_id in enumerate(ids):
            path = f"{side}/{name(class_id)}/Kind_{class_id}_{image:03}.jpg"
            write_image(root / path, content)
            lines.append(f"{path}, {class_id}, {class_id // 2}\n")
        (root / f"{side}.txt").write_text("".join(lines))
    return root
