//! The built command: what it prints, how it ends, and that it leaves no process behind.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The limit for one command; generous, since it only has to distinguish slow from stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A variable that only the processes of one command have.
const MARK: &str = "BREVITY_CLI_TEST_MARK";

/// The variables that a launcher sets.
const LAUNCHED: [&str; 7] = [
    "BREVITY_RANK",
    "BREVITY_WORLD_SIZE",
    "BREVITY_MASTER",
    "BREVITY_TRANSPORT",
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
];

struct Ended {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

fn command(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_brevity"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    LAUNCHED.iter().for_each(|name| _ = command.env_remove(name));
    command
}

/// Starts the command; returns the mark of its processes.
fn start(line: &str) -> (Child, String) {
    start_into(line, Stdio::piped())
}

/// The same, where its output goes.
fn start_into(line: &str, stdout: Stdio) -> (Child, String) {
    static COMMANDS: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{}-{}", std::process::id(), COMMANDS.fetch_add(1, Ordering::Relaxed));
    let mut command = command(line);
    command.env(MARK, &mark);
    (command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap(), mark)
}

/// Runs the command to its end, which must come in time and leave no process.
fn brevity(line: &str) -> Ended {
    let (mut child, mark) = start(line);
    let read = |mut from: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut text = String::new();
            from.read_to_string(&mut text).unwrap();
            text
        })
    };
    let stdout = read(Box::new(child.stdout.take().unwrap()));
    let stderr = read(Box::new(child.stderr.take().unwrap()));
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{line:?} did not end in {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(left_behind(&mark), Vec::<String>::new(), "{line}");
    Ended { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

/// Processes with the mark.
fn marked(mark: &str) -> Vec<String> {
    let entry = format!("{MARK}={mark}");
    let bears_mark = |process: fs::DirEntry| {
        let environment = fs::read(process.path().join("environ")).ok()?;
        let is_marked = environment.split(|&byte| byte == 0).any(|variable| variable == entry.as_bytes());
        is_marked.then(|| process.file_name().to_string_lossy().into_owned())
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(bears_mark).collect()
}

/// Processes with the mark that still exist a moment later.
fn left_behind(mark: &str) -> Vec<String> {
    for _ in 0..100 {
        if marked(mark).is_empty() {
            return Vec::new();
        }
        thread::sleep(Duration::from_millis(50));
    }
    marked(mark)
}

/// Runs a command that must succeed; its standard output.
fn succeed(line: &str) -> String {
    let Ended { status, stdout, stderr } = brevity(line);
    assert_eq!(status, Some(0), "{line}: {stderr}");
    stdout
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The sizes of a table, whose other columns must be numbers in order.
fn sizes(table: &str) -> Vec<usize> {
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let figures: Vec<f64> = row.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
        let [size, avg, min, max, p50, p99] = figures[..6].try_into().unwrap();
        assert!(0.0 < min && min <= p50 && p50 <= p99 && p99 <= max && min <= avg && avg <= max, "{row}");
        size as usize
    })
    .collect()
}

fn assert_row(row: &Value) {
    for name in ["bytes", "avg_us", "min_us", "max_us", "p50_us", "p99_us", "bandwidth_MBps"] {
        assert!(row[name].as_f64().is_some_and(|figure| figure > 0.0), "{name} in {row}");
    }
}

#[test]
fn info_names_the_transports() {
    let text = succeed("info");
    assert!(text.contains("tcp") && text.contains("ucx"), "{text}");
    let info = json(&succeed("info --json"));
    assert_eq!(info["version"], env!("CARGO_PKG_VERSION"));
    assert!(info["host"].as_array().unwrap().iter().all(|found| found["note"].is_string()), "{info}");
    let transports = info["transports"].as_array().unwrap();
    let tcp = transports.iter().find(|transport| transport["name"] == "tcp").unwrap();
    assert_eq!(tcp["available"], true);
    let ucx = transports.iter().find(|transport| transport["name"] == "ucx").unwrap();
    if ucx["available"] == true {
        assert!(info["ucx"]["version"].as_str().unwrap().starts_with("1."), "{info}");
    } else {
        assert!(ucx["note"].as_str().unwrap().contains("libucp.so"), "{info}");
    }
}

#[test]
fn all_reduce_over_tcp_writes_its_figures() {
    let folder = tempfile::tempdir().unwrap();
    let (file, plot) = (folder.path().join("figures.json"), folder.path().join("figures.svg"));
    let line = format!(
        "perf allreduce --ranks 3 --transport tcp --size 4:64K --iterations 5 --verify --json {} --plot {}",
        file.display(),
        plot.display()
    );
    let table = succeed(&line);
    let expected: Vec<usize> = (2..=16).map(|bit| 1 << bit).collect();
    assert_eq!(sizes(&table), expected, "{table}");
    let figures = json(&fs::read_to_string(file).unwrap());
    assert_eq!(figures["name"], "allreduce");
    assert_eq!(figures["transport"], "tcp");
    assert_eq!(figures["world_size"], 3);
    assert_eq!(figures["dtype"], "f32");
    let rows = figures["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["bytes"].as_u64().unwrap() as usize).collect::<Vec<_>>(), expected);
    rows.iter().for_each(assert_row);
    assert!(fs::read_to_string(plot).unwrap().contains("allreduce"));
}

#[test]
fn latency_prints_the_columns_of_the_osu_benchmarks() {
    let table = succeed("perf latency --ranks 2 --transport tcp --size 1:4K --iterations 20 --verify");
    let head = table.lines().find(|line| line.starts_with("# Size")).unwrap();
    assert_eq!(
        head.split_whitespace().collect::<Vec<_>>(),
        ["#", "Size", "Avg", "Latency(us)", "Min", "Max", "p50", "p99"]
    );
    assert_eq!(sizes(&table).len(), 13);
}

#[test]
fn bandwidth_is_measured_in_four_ranks() {
    let table = succeed("perf bandwidth --ranks 4 --transport tcp --size 1K:64K --iterations 4 --verify");
    assert!(
        table.lines().any(|line| line.starts_with("# Size") && line.contains("Bandwidth(MB/s)")),
        "{table}"
    );
    assert_eq!(sizes(&table).len(), 7);
    let blocks = ["reducescatter", "allgather", "gather", "scatter", "alltoall", "allgatherv"];
    for name in ["bibandwidth", "put", "get", "broadcast", "reduce"].into_iter().chain(blocks) {
        let figures = json(&succeed(&format!(
            "perf {name} --transport tcp --size 4K --iterations 5 --verify --json -"
        )));
        assert_eq!(figures["name"], name);
        assert_row(&figures["rows"][0]);
    }
}

#[test]
fn simulated_ranks_are_many_and_take_the_same_time_in_every_run() {
    let line = "perf allreduce --transport sim --alpha 1e-6 --beta 1e-9 --np 256 --size 4:4K --json -";
    let figures = json(&succeed(line));
    assert_eq!((&figures["transport"], figures["world_size"].as_u64()), (&"sim".into(), Some(256)));
    let rows = figures["rows"].as_array().unwrap();
    rows.iter().for_each(assert_row);
    assert_eq!(json(&succeed(line)), figures);
}

/// What draws docs/drawings.
const DRAWINGS: [&str; 2] = ["draw", "draw --algorithm hosts --np 8 --hosts 2"];

#[test]
fn the_drawings_of_the_documentation_are_those_of_the_algorithms() {
    let (folder, docs) = (tempfile::tempdir().unwrap(), Path::new("../docs"));
    for line in DRAWINGS {
        succeed(&format!("{line} --output {}", folder.path().display()));
    }
    let files = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.collect::<BTreeSet<_>>()
    };
    let (drawn, kept) = (files(folder.path()), docs.join("drawings"));
    let renew = "draw them again: CONTRIBUTING.md";
    assert_eq!(drawn, files(&kept), "{renew}");
    let text = fs::read_to_string(docs.join("algorithms.md")).unwrap();
    for file in drawn {
        let read = |folder: &Path| fs::read_to_string(folder.join(&file)).unwrap();
        assert!(read(folder.path()) == read(&kept), "{}: {renew}", file.display());
        let link = format!("drawings/{}", file.display());
        assert!(text.contains(&link), "docs/algorithms.md does not show {link}");
    }
}

#[test]
fn overlap_has_the_columns_of_the_osu_benchmarks() {
    let table =
        succeed("perf allreduce --overlap --tests 2 --transport tcp --size 4K:8K --iterations 5 --verify");
    let head = table.lines().find(|line| line.starts_with("# Size")).unwrap();
    assert_eq!(
        head.split_whitespace().skip(2).collect::<Vec<_>>().join(" "),
        "Overall(us) Compute(us) Pure Comm.(us) Overlap(%)"
    );
    let rows = table.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(rows.map(|row| row.split_whitespace().count()).collect::<Vec<_>>(), [5, 5], "{table}");
}

#[test]
fn gtopk_says_what_it_sends() {
    let line = "perf gtopk-allreduce --ranks 2 --transport tcp --elements 100K --density 0.001,0.01 \
                --iterations 3 --json -";
    let figures = json(&succeed(line));
    let rows = figures["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (row, kept) in rows.iter().zip([103.0, 1024.0]) {
        assert_row(row);
        assert_eq!(row["kept"].as_f64(), Some(kept));
        // Each of two ranks sends at most 8 bytes an entry, and headers.
        let sent = row["bytes_sent_per_rank"].as_f64().unwrap();
        assert!(sent > 4.0 * kept && sent < 8.0 * kept + 1000.0, "{row}");
    }
}

#[test]
fn kernels_of_compression_stand_beside_their_floors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display();
    let line = format!(
        "perf compress --elements 4K --iterations 1 --json {path}/a.json --plot {path}/a.svg --record \
         {path}/kept"
    );
    let table = succeed(&line);
    let figures = json(&fs::read_to_string(folder.path().join("a.json")).unwrap());
    for name in ["name", "date", "machine", "version", "commit", "command"] {
        assert!(figures[name].as_str().is_some_and(|text| !text.is_empty()), "{name}");
    }
    let rows = figures["rows"].as_array().unwrap();
    for row in rows {
        assert!(table.contains(row["kernel"].as_str().unwrap()), "{row}");
        // A clock may not advance over so few elements: ratios need not be numbers.
        let is_time = |name: &&str| row[*name].as_f64().is_some_and(|ms| ms >= 0.0);
        assert!(["ms", "median_ms", "floor_ms", "floor_median_ms"].iter().all(is_time), "{row}");
        assert_eq!(row["bar"].is_string(), row["met"].is_boolean(), "{row}");
    }
    for group in ["drop", "rules", "sparse", "codec", "dense", "quantise", "low-rank", "feedback"] {
        assert!(rows.iter().any(|row| row["group"] == group), "{group}");
    }
    // A missing NumPy is reported, and each one found is named and measured.
    let peers: Vec<&str> = figures["peers"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let versions = peers.iter().filter_map(|peer| peer.strip_prefix("numpy: ")?.split(' ').next());
    let expected: Vec<_> =
        versions.map(|version| format!("gradient drop, warm, beside numpy {version}")).collect();
    let measured =
        rows.iter().filter(|row| row["group"] == "numpy").map(|row| row["kernel"].as_str().unwrap());
    assert_eq!(measured.collect::<Vec<_>>(), expected);
    assert_eq!(table.contains("missing: numpy"), expected.is_empty());
    assert!(
        table.contains("bars met")
            && fs::read_to_string(folder.path().join("a.svg")).unwrap().starts_with("<svg")
    );
    let mut kept: Vec<_> =
        fs::read_dir(folder.path().join("kept")).unwrap().map(|file| file.unwrap().path()).collect();
    kept.sort();
    let endings: Vec<_> = kept.iter().map(|file| file.extension().unwrap().to_str().unwrap()).collect();
    assert_eq!(endings, ["json", "svg", "txt"]);
    assert!(table.starts_with(&fs::read_to_string(&kept[2]).unwrap()), "{table}");
}

#[test]
fn kernels_are_chosen_by_group() {
    let figures = json(&succeed("perf compress --elements 4K --iterations 1 --only codec,dense --json -"));
    let rows = figures["rows"].as_array().unwrap();
    assert!(rows.len() > 10 && rows.iter().all(|row| row["group"] == "codec" || row["group"] == "dense"));
    let codec = rows.iter().find(|row| row["group"] == "codec").unwrap();
    assert!(codec["over_entropy"].as_f64().unwrap() >= 1.0 && codec["ns_an_entry"].is_number(), "{codec}");
}

#[test]
fn ranks_die_with_the_command() {
    let (mut child, mark) =
        start("perf allreduce --ranks 3 --transport tcp --size 64K --iterations 100000000");
    let mut table = BufReader::new(child.stdout.take().unwrap());
    let mut title = String::new();
    // All ranks have joined when the table begins.
    table.read_line(&mut title).unwrap();
    assert!(title.contains("3 ranks"), "{title}");
    assert_eq!(marked(&mark).len(), 4);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(left_behind(&mark), Vec::<String>::new());
}

#[test]
fn bad_arguments_are_told_in_one_line() {
    let lines = [
        "",
        "perf",
        "perf dance",
        "perf allreduce --dtype i8",
        "perf latency --ranks 1",
        "perf latency --size 8:4",
        "perf latency --size many",
        "perf latency --bogus",
        "perf allreduce --transport smoke",
        "perf gtopk-allreduce --density 2",
        "perf compress --only dance",
        "perf compress --ranks 2",
        "perf compress --record /proc/kept",
        "perf allreduce --json /no/such/folder/file.json",
        "perf latency --plot /proc/figures.svg",
        "perf latency --plot figures.png",
        "perf compress --json /proc/figures.json",
        "perf compress --iterations 0",
        "perf compress --rank 4",
        "perf gtopk-allreduce --rank 4",
        "perf exchange --transport sim --trace trace.json",
        "perf latency --transport sim",
        "plan all-reduce --json",
        "plan --json /proc/plan.json",
        "info --bogus",
    ];
    for line in lines {
        let Ended { status, stdout, stderr } = brevity(line);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{line}");
        assert_eq!(stderr.lines().count(), 1, "{line}: {stderr}");
    }
    assert!(brevity("perf dance").stderr.contains("vote-allreduce; or compress"));
    let why = brevity("perf compress --iterations 0").stderr;
    assert!(why.contains("--iterations 0: expected at least 1"), "{why}");
}

#[test]
fn a_run_that_fails_leaves_files_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (folder.path().join("figures.json"), folder.path().join("figures.svg"));
    fs::write(&json, "of an earlier run").unwrap();
    // Both files can be opened, but no rank can join over such a transport.
    let line = format!("perf latency --transport ucx --json {} --plot {}", json.display(), plot.display());
    let mut command = command(&line);
    let ended = command.env("BREVITY_UCX_LIB", "/no/such/libucp.so").output().unwrap();
    assert!(!ended.status.success());
    assert_eq!(fs::read_to_string(&json).unwrap(), "of an earlier run");
    assert!(!plot.exists());
}

#[test]
fn nothing_is_told_where_nobody_reads() {
    for line in
        ["info", "info --json", "perf latency --transport tcp --size 8:64K", "perf compress --elements 4K"]
    {
        // Gone before the command begins: some end in milliseconds.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let (mut child, mark) = start_into(line, writer.into());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let status = child.wait().unwrap();
        // The status that shells give a program that SIGPIPE has ended.
        assert_eq!((status.code(), stderr.as_str()), (Some(141), ""), "{line}");
        assert_eq!(left_behind(&mark), Vec::<String>::new(), "{line}");
    }
}
