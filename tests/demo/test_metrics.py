from nnxgraph.demo._metrics import COLUMNS, MetricsFile


def row(step):
    return {"step": step, "loss": 1 / 3, "accuracy": 0.5, "validation_loss": "", "tokens_per_second": 9}


def lines(folder):
    return (folder / "metrics.csv").read_text().splitlines()


def test_rows_are_on_disk_at_once(tmp_path):
    file = MetricsFile(tmp_path, step=0)
    assert lines(tmp_path) == [",".join(COLUMNS)]
    file.write(row(10))
    assert lines(tmp_path)[1:] == ["10,0.3333333333333333,0.5,,9"]
    assert [f.name for f in tmp_path.iterdir()] == ["metrics.csv"]


def test_resumed_run_drops_the_rows_that_it_will_write_again(tmp_path):
    file = MetricsFile(tmp_path, step=0)
    for step in (10, 20, 30):
        file.write(row(step))
    MetricsFile(tmp_path, step=20).write(row(30))
    assert [line.split(",")[0] for line in lines(tmp_path)] == ["step", "10", "20", "30"]


def test_row_that_was_cut_off_is_dropped(tmp_path):
    MetricsFile(tmp_path, step=0).write(row(10))
    with (tmp_path / "metrics.csv").open("a") as stream:
        stream.write("2")
    MetricsFile(tmp_path, step=10)
    assert len(lines(tmp_path)) == 2


def test_new_run_starts_with_no_rows(tmp_path):
    MetricsFile(tmp_path, step=0).write(row(10))
    MetricsFile(tmp_path, step=0)
    assert lines(tmp_path) == [",".join(COLUMNS)]
