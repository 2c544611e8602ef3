//! The measurements with threads as ranks.

use std::thread;

use brevity::collectives::Error as Collective;
use brevity::transport::local;
use brevity::{Group, Settings};

use super::parsed::parsed_line;
use super::*;

fn plan(line: &str) -> Plan {
    parsed_line(line).unwrap().plan().unwrap()
}

fn on_ranks<R: Send>(world_size: u32, body: impl Fn(&Group) -> R + Sync) -> Vec<R> {
    let body = &body;
    thread::scope(|scope| {
        let ranks: Vec<_> = local::world(world_size)
            .into_iter()
            .map(|rank| scope.spawn(move || body(&Group::new(Box::new(rank), Settings::default()))))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The rows, which must be the same on all ranks.
fn rows(world_size: u32, line: &str) -> Vec<Row> {
    let plan = plan(line);
    let measured = on_ranks(world_size, |group| {
        let row = |&case| {
            Row::gather(
                group,
                plan.benchmark,
                case,
                measure(group, plan.benchmark, plan.dtype, case, plan.verify).unwrap(),
            )
            .unwrap()
            .unwrap()
        };
        plan.cases.iter().map(row).collect::<Vec<_>>()
    });
    let texts: Vec<_> = measured.iter().map(|rows| serde_json::to_string(rows).unwrap()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    measured.into_iter().next().unwrap()
}

#[test]
fn every_benchmark_measures_right_results() {
    for world_size in [1, 2, 3, 5] {
        let lines = [
            "allreduce --size 4:4K",
            "allreduce --size 8:4K --dtype f64",
            "broadcast --size 4:4K",
            "allgather --size 4:4K",
            "barrier",
            "gtopk-allreduce --elements 999 --density 0.01,0.5,1",
            "sparse-allgather --elements 999 --density 0.01,0.5,1",
            "sparse-allgather --elements 999 --density 0.01,0.5,1 --values two-bit-mean",
            "topk-allreduce --elements 999 --density 0.01,0.5,1",
            "topk-allreduce --elements 999 --density 0.01,0.5,1 --values one-bit-min",
            "split-allreduce --elements 999 --density 0.01,0.5,1",
            "split-allreduce --elements 999 --density 0.01,0.5,1 --values eight-bit",
            "gtopk-allreduce --elements 999 --density 0.01,0.5,1 --values bf16",
            "sparse-reducescatter --elements 999 --density 0.01,0.5,1",
            "sparse-reducescatter --elements 999 --density 0.01,0.5,1 --values two-bit-min",
            "randomk-allreduce --elements 999 --density 0.01,0.7,1",
            "randomblock-allreduce --elements 999 --density 0.01,0.7,1",
            "block-allreduce --elements 9999 --density 0.01,0.5,1",
            "hierarchical-allreduce --elements 999 --density 0.01,0.5,1",
            "lowrank-allreduce --size 4:16K",
            "lowrank-allreduce --elements 9999 --rank 1",
            "quantised-allreduce --size 4:16K",
            "quantised-allreduce --size 4:16K --values eight-bit",
            "quantised-allreduce --size 4:16K --values one-bit-mean",
            "quantised-allreduce --size 4:16K --values one-bit-columns-9",
            "quantised-allreduce --size 4:16K --values ternary",
            "quantised-allreduce --size 4:16K --values qsgd-7",
            "gtopk-allreduce --elements 999 --density 0.01,0.5,1 --values qsgd-127",
            "topk-allreduce --elements 999 --density 0.01,0.5,1 --values one-bit-columns-9",
            "oktopk-allreduce --elements 999 --density 0.01,0.5,1 --values ternary",
            "sparse-reducescatter --elements 999 --density 0.01,0.5,1 --values qsgd-2",
            "vote-allreduce --size 4:16K",
            "gtopk-allreduce --elements 999 --density 0.01,0.5,1 --values eight-bit",
            "oktopk-allreduce --elements 999 --density 0.01,0.5,1",
            "oktopk-allreduce --elements 999 --density 0.01,0.5,1 --values f32",
            "oktopk-allreduce --elements 999 --density 0.01,0.5,1 --values one-bit-mean",
        ];
        for line in lines {
            let rows = rows(world_size, &format!("{line} --iterations 3 --warmup 1 --verify"));
            assert!(rows.iter().all(|row| row.iterations == 3 && row.avg_us > 0.0), "{line}: {rows:?}");
        }
    }
}

#[test]
fn latency_is_measured_between_two_ranks_whoever_else_is_there() {
    for world_size in [2, 3] {
        let rows = rows(world_size, "latency --size 1:64K --iterations 5 --warmup 2 --verify");
        assert_eq!(rows.len(), 17);
        for row in rows {
            assert!(row.min_us > 0.0 && row.call_avg_us.unwrap() > 0.0, "{row:?}");
            assert_eq!(row.bandwidth_MBps, row.bytes as f64 / row.avg_us);
        }
    }
}

#[test]
fn every_pair_is_measured() {
    for name in ["bandwidth", "bibandwidth", "put", "get"] {
        for verify in ["", "--verify"] {
            let rows = rows(4, &format!("{name} --size 1:64K --iterations 3 --warmup 1 {verify}"));
            assert_eq!(rows.len(), 17);
            for row in rows {
                let messages = if name == "bibandwidth" { 2.0 } else { 1.0 };
                assert!(row.min_us > 0.0 && row.call_avg_us.is_none(), "{name}: {row:?}");
                assert_eq!(row.bandwidth_MBps, messages * row.bytes as f64 / row.avg_us, "{name}");
            }
        }
    }
}

#[test]
fn sparse_vectors_send_what_they_keep() {
    let rows = rows(2, "gtopk-allreduce --elements 100K --density 0.001,0.01 --iterations 4");
    assert_eq!(rows.iter().map(|row| row.kept).collect::<Vec<_>>(), [Some(103), Some(1024)]);
    for row in rows {
        // Each of two ranks sends at most 8 bytes an entry, and a header.
        let entries = row.kept.unwrap() as f64;
        assert!((8.0 * entries..8.0 * entries + 200.0).contains(&row.bytes_sent_per_rank), "{row:?}");
    }
}

#[test]
fn only_the_rank_that_stopped_the_job_tells() {
    let outcomes = on_ranks(2, |group| {
        if group.rank() == 1 {
            group.abort();
        }
        let error = Error::from(group.barrier().unwrap_err());
        assert!(matches!(error, Error::Collective(Collective::Aborted { .. })), "{error}");
        ranks::is_told_elsewhere(&error, group.rank())
    });
    assert_eq!(outcomes, [true, false]);
    let misuse = Error::Arguments("no".into());
    assert!(!ranks::is_told_elsewhere(&misuse, 0) && ranks::is_told_elsewhere(&misuse, 1));
    assert_eq!(misuse.status(), 2);
}

#[test]
fn the_job_must_be_as_the_arguments_ask() {
    let check =
        |line: &str| ranks::check(&plan(line).wanted(), &Group::solo()).map_err(|error| error.to_string());
    assert_eq!(check("allreduce"), Ok(()));
    assert_eq!(check("allreduce --ranks 1 --transport auto"), Ok(()));
    assert!(check("allreduce --ranks 3").unwrap_err().contains("started 1 ranks, expected 3"));
    assert!(check("latency").unwrap_err().contains("started 1 ranks, expected 2"));
    assert!(check("allreduce --transport tcp").unwrap_err().contains("BREVITY_TRANSPORT=tcp"));
}

#[test]
fn every_dense_collective_is_overlapped() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    for name in ["allreduce --size 4:4K", "broadcast --size 4:4K", "allgather --size 4:4K", "barrier"] {
        let line = format!("{name} --overlap --tests 2 --verify --iterations 3 --json {}", json.display());
        let plan = plan(&line);
        for outcome in on_ranks(3, |group| overlap::measure_all(group, &plan, 2)) {
            outcome.unwrap();
        }
        let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        let rows = figures["rows"].as_array().unwrap();
        assert_eq!(rows.len(), plan.cases.len());
        for row in rows {
            let figure = |name: &str| row[name].as_f64().unwrap();
            assert!(figure("overall_us") >= figure("compute_us") && figure("pure_us") > 0.0, "{row}");
            assert!((0.0..=100.0).contains(&figure("overlap_percent")), "{row}");
        }
    }
}

#[test]
fn figures_are_written_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let (json, svg) = (folder.path().join("figures.json"), folder.path().join("figures.svg"));
    for line in [
        "gtopk-allreduce --elements 1K --density 0.01,0.1",
        "allreduce --size 4:64",
        "allreduce --size 8",
        "barrier",
    ] {
        let line = format!("{line} --iterations 2 --json {} --plot {}", json.display(), svg.display());
        let plan = plan(&line);
        for outcome in on_ranks(2, |group| measure_all(group, &plan)) {
            outcome.unwrap();
        }
        let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!(figures["rows"].as_array().unwrap().len(), plan.cases.len());
        let drawing = std::fs::read_to_string(&svg).unwrap();
        assert!(
            drawing.starts_with("<svg") && drawing.contains("</svg>") && drawing.contains("p99"),
            "{line}"
        );
    }
}
