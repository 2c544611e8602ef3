//! The programs of `bench/osu`: built by their Makefile against an installed library, and run as jobs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use brevity::launch::Ending;
use brevity_testing::{is_required, slurm};
use ucx_sys_wrap::bootstrap::Choice;

use crate::list::ALL;
use crate::ranks::{Way, endings_of};
use crate::stage::{Stage, built, outcome, run, source};

/// Those that are no collectives.
const OTHERS: [&str; 11] = [
    "latency",
    "multi_lat",
    "bw",
    "bibw",
    "mbw_mr",
    "put_latency",
    "get_latency",
    "put_bw",
    "get_bw",
    "put_bibw",
    "init",
];

const COMPRESSED: [&str; 13] = [
    "gtopk_average",
    "low_rank_average",
    "topk_allreduce",
    "gtopk_allreduce",
    "oktopk_allreduce",
    "sparse_allgather",
    "sparse_reduce_scatter",
    "hierarchical_allreduce",
    "random_k_allreduce",
    "block_allreduce",
    "quantised_allreduce",
    "vote_allreduce",
    "low_rank_allreduce",
];

/// The columns of a collective with all options, and of one that is started.
const BLOCKING: [&str; 5] =
    ["Avg Latency(us)", "Min Latency(us)", "Max Latency(us)", "Iterations", "Validation"];
const STARTED: [&str; 10] = [
    "Overall(us)",
    "Compute(us)",
    "Coll. Init(us)",
    "MPI_Test(us)",
    "MPI_Wait(us)",
    "Pure Comm.(us)",
    "Min Comm.(us)",
    "Max Comm.(us)",
    "Overlap(%)",
    "Validation",
];

/// The programs, and the library that they are linked with.
struct Programs {
    stage: Stage,
    folder: PathBuf,
}

/// What a job has printed: rank 0, and whether all ranks have ended with this status.
struct Printed {
    text: String,
    status: i32,
}

impl Programs {
    fn build() -> Self {
        let stage = Stage::new();
        let (prefix, folder) = (stage.path().join("prefix"), stage.path().join("programs"));
        run(Command::new("sh").arg(source("install.sh")).arg(&prefix).arg(built()).env_remove("DESTDIR"));
        let mut make = Command::new("make");
        make.arg("-C").arg(source("../bench/osu")).arg(format!("BUILD={}", folder.display()));
        make.arg("CFLAGS=-O1 -Werror").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        run(make.env_remove("MAKEFLAGS"));
        Self { stage, folder }
    }

    fn run_with(&self, variables: &[(&str, &str)], name: &str, arguments: &str, ranks: u32) -> Printed {
        let program = self.folder.join(format!("brv_{name}"));
        let words: Vec<_> = arguments.split_whitespace().collect();
        let way = Way { variables, transport: Choice::Tcp, restarts: 0 };
        let (endings, outputs) = endings_of(way, &self.stage, &program, &words, ranks);
        let Ending::Exited(status) = endings[0] else { panic!("{name}: {endings:?}: {outputs:?}") };
        assert!(endings.iter().all(|ending| *ending == endings[0]), "{name}: {endings:?}: {outputs:?}");
        assert!(outputs[1..].iter().all(String::is_empty), "{name}: {outputs:?}");
        Printed { text: outputs[0].clone(), status }
    }

    fn run(&self, name: &str, arguments: &str, ranks: u32) -> String {
        let printed = self.run_with(&[], name, arguments, ranks);
        assert_eq!(printed.status, 0, "{name} {arguments}: {}", printed.text);
        printed.text
    }

    /// Runs a program that prints one table, and returns its sizes.
    fn sizes(&self, name: &str, arguments: &str, ranks: u32, columns: &[&str]) -> Vec<String> {
        let text = self.run(name, arguments, ranks);
        table(&text, columns).into_iter().map(|row| row[0].clone()).collect()
    }
}

/// The rows of the table with these columns after the size. All figures must be numbers, and all results
/// right.
fn table(text: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let head: String = columns.iter().fold(format!("{:<10}", "# Size"), |head, column| {
        head + &if *column == "Iterations" { format!("{column:>12}") } else { format!("{column:>20}") }
    });
    let rows: Vec<Vec<String>> = text
        .lines()
        .skip_while(|line| *line != head)
        .skip(1)
        .take_while(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        .map(|line| line.split_whitespace().map(str::to_owned).collect())
        .collect();
    assert!(!rows.is_empty(), "no rows below {head:?}: {text}");
    for row in &rows {
        assert_eq!(row.len(), 1 + columns.len(), "{text}");
        for (column, cell) in columns.iter().zip(&row[1..]) {
            match *column {
                "Validation" => assert_eq!(cell, "Pass", "{text}"),
                "Iterations" => assert!(cell.parse::<u32>().is_ok(), "{text}"),
                _ => assert!(is_real(cell), "{column}: {cell}: {text}"),
            }
        }
    }
    rows
}

/// Whether this is a number of two decimals that is not negative.
fn is_real(cell: &str) -> bool {
    let decimals = cell.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    decimals == 2 && cell.parse::<f64>().is_ok_and(|number| number >= 0.0 && number.is_finite())
}

/// The program of a collective of the C interface.
fn program_of(name: &str) -> String {
    let name = name.replace("broadcast", "bcast").replace("_v", "v");
    name.replace("all_to_all", "alltoall").replace("all_", "all")
}

fn collectives() -> impl Iterator<Item = String> {
    ALL.iter().map(|entry| program_of(entry.name)).filter(|name| name != "barrier")
}

#[test]
fn every_program_of_osu_prints_its_columns_and_right_results() {
    let programs = Programs::build();
    let names = fs::read_to_string(programs.folder.join("names")).unwrap();
    let collectives: Vec<String> = collectives().chain(COMPRESSED.map(str::to_owned)).collect();
    let mut expected: Vec<String> = OTHERS.map(|name| format!("brv_{name}")).to_vec();
    for name in collectives.iter().map(String::as_str).chain(["barrier"]) {
        expected.extend([format!("brv_{name}"), format!("brv_i{name}")]);
    }
    let mut found: Vec<&str> = names.lines().collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);

    for name in collectives {
        let arguments = "-m 4:8 -i 2 -x 1 -c -u 1 -f";
        assert_eq!(programs.sizes(&name, arguments, 2, &BLOCKING), ["4", "8"], "{name}");
        let (name, arguments) = (format!("i{name}"), format!("{arguments} -t 2"));
        assert_eq!(programs.sizes(&name, &arguments, 2, &STARTED), ["4", "8"], "{name}");
    }
    for name in OTHERS {
        let columns: &[&str] = match name {
            "init" => continue,
            "mbw_mr" => &["MB/s", "Messages/s", "Validation"],
            name if name.ends_with("lat") || name.ends_with("latency") => &["Avg Latency(us)", "Validation"],
            _ => &["Bandwidth (MB/s)", "Validation"],
        };
        assert_eq!(programs.sizes(name, "-m 4:8 -i 2 -x 1 -c -u 1", 2, columns), ["4", "8"], "{name}");
    }
    barriers_have_no_sizes(&programs);
    let text = programs.run("init", "", 2);
    assert!(text.contains("\nnprocs: 2, min: ") && text.contains(" ms, avg: "), "{text}");
}

fn barriers_have_no_sizes(programs: &Programs) {
    let text = programs.run("barrier", "-i 3 -x 1 -f", 2);
    let columns = ["#    Avg Latency(us)", "     Min Latency(us)", "     Max Latency(us)", "  Iterations"];
    let rows: Vec<&str> = text.lines().skip_while(|line| *line != columns.concat()).collect();
    assert!(rows.len() == 2 && rows[1].ends_with("           3"), "{text}");
    let text = programs.run("ibarrier", "-i 3 -x 1", 2);
    let words = ["Overall(us)", "Compute(us)", "Pure Comm.(us)", "Overlap(%)"];
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("Overall(us)")).collect();
    assert!(rows.len() == 2 && words.iter().all(|word| rows[0].contains(word)), "{text}");
    assert!(rows[1].split_whitespace().filter(|cell| is_real(cell)).count() == words.len(), "{text}");
    assert!(text.contains("\n# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n"), "{text}");
}

#[test]
fn options_of_osu_do_what_they_say() {
    let programs = Programs::build();
    let latency = ["Avg Latency(us)"];
    // Sizes: MAX, :MAX, MIN:MAX; those of less than an element are left out.
    assert_eq!(programs.sizes("latency", "-m 4 -i 2 -x 0", 2, &latency), ["0", "1", "2", "4"]);
    assert_eq!(programs.sizes("allreduce", "-m :4 -i 2 -x 0", 2, &latency), ["1", "2", "4"]);
    let text = programs.run("allreduce", "-m 2:8 -i 2 -x 0 -T all -c", 3);
    let tables: Vec<&str> = text.split("# Datatype: ").skip(1).collect();
    let sizes = |text| table(text, &["Avg Latency(us)", "Validation"]).len();
    assert!(tables.iter().zip(["MPI_CHAR.", "MPI_INT.", "MPI_FLOAT."]).all(|(a, b)| a.starts_with(b)));
    assert_eq!(tables.iter().map(|&text| sizes(text)).collect::<Vec<_>>(), [3, 2, 2], "{text}");
    // Memory.
    let text = programs.run("allreduce", "-m 16:1024 -i 2 -x 0 -M 100", 2);
    assert!(table(&text, &latency).len() == 2 && text.contains("raise -M"), "{text}");
    // Percentiles, in the order of their numbers.
    let text = programs.run("allreduce", "-m 8:8 -i 9 -x 0 --tail-lat=50,99", 2);
    let columns = ["Avg Latency(us)", "P50 Tail Lat(us)", "P99 Tail Lat(us)"];
    let row = &table(&text, &columns)[0];
    assert!(row[2].parse::<f64>().unwrap() <= row[3].parse().unwrap(), "{text}");
    let columns = ["Bandwidth (MB/s)", "P50 Tail BW(MB/s)", "P90 Tail BW(MB/s)", "P99 Tail BW(MB/s)"];
    assert_eq!(programs.sizes("bw", "-m 8:8 -i 9 -x 0 -z", 2, &columns), ["8"]);
    // Windows, memory of their own for each message, pairs and rates.
    let validated = ["Bandwidth (MB/s)", "Validation"];
    for name in ["bw", "bibw"] {
        assert_eq!(programs.sizes(name, "-m 8:8 -i 2 -x 0 -W 3 -b multiple -c", 2, &validated), ["8"]);
    }
    assert_eq!(programs.sizes("mbw_mr", "-m 8:8 -i 2 -x 0 -p 1 -R 0 -W 3", 3, &["MB/s"]), ["8"]);
    let windows = ["8", "16", "32", "64", "128"];
    let text = programs.run("mbw_mr", "-m 8:16 -i 2 -x 0 -V", 4);
    assert!(text.contains("# [ pairs: 2 ] [ window size: varied ]"), "{text}");
    let (bandwidths, rates) = text.split_once("# Message Rate Profile").unwrap();
    assert_eq!((table(bandwidths, &windows).len(), table(rates, &windows).len()), (2, 2), "{text}");
    assert_eq!(programs.sizes("multi_lat", "-m 8:8 -i 2 -x 0 -T mpi_int", 4, &latency), ["8"]);
    // Tests are counted apart.
    let text = programs.run("iallreduce", "-m 8:8 -i 2 -x 0 -f -t 4", 2);
    assert!(table(&text, &STARTED[..9])[0][4].parse::<f64>().unwrap() > 0.0, "{text}");
    // Compression.
    assert_eq!(programs.sizes("gtopk_average", "-m 64:64 -i 2 -x 0 -e 0.5", 3, &latency), ["64"]);
    for name in &COMPRESSED[2..] {
        let density = if ["quantised", "vote", "low_rank"].iter().any(|no| name.starts_with(no)) {
            ""
        } else {
            "-e 0.05"
        };
        let arguments = &format!("-m 4096:8192 -i 3 -x 1 -c {density}");
        assert_eq!(programs.sizes(name, arguments, 3, &["Avg Latency(us)", "Validation"]), ["4096", "8192"]);
    }
    assert_eq!(programs.sizes("low_rank_average", "-m 4096:4096 -i 2 -x 0 -n 2", 3, &latency), ["4096"]);
    // What ends at once.
    assert!(programs.run("allreduce", "-h", 2).contains("Usage: brv_allreduce "));
    assert!(programs.run("allreduce", "-v", 2).starts_with("brv_allreduce "));
}

#[test]
fn roots_rotate_and_results_in_place_are_right() {
    let programs = Programs::build();
    let columns = ["Avg Latency(us)", "Validation"];
    for name in collectives() {
        let rooted =
            ["bcast", "bcast_to", "reduce", "gather", "gatherv", "scatter", "scatterv"].contains(&&*name);
        let place = if name == "bcast" { "" } else { "-l" };
        for root in if rooted { &["-k rotate", "-k fixed:2", "--root-rank rotate"][..] } else { &[""] } {
            let arguments = format!("-m 12:64 -i 4 -x 1 -c -T mpi_float {place} {root}");
            assert_eq!(programs.sizes(&name, &arguments, 3, &columns).len(), 3, "{name} {arguments}");
        }
    }
}

#[test]
fn wrong_options_of_osu_are_refused() {
    let programs = Programs::build();
    for (name, arguments, words) in [
        ("latency", "-q", "-q: there is no such option"),
        ("latency", "--nonsense", "--nonsense: there is no such option"),
        ("latency", "-m", "-m: expected a value"),
        ("latency", "-m 0:8", "-m: this value makes no sense"),
        ("latency", "-m 8:4", "-m: this value makes no sense"),
        ("latency", "-i 0", "-i: this value makes no sense"),
        ("latency", "-T mpi_double", "-T: this value makes no sense"),
        ("latency", "-z1,2,3,4,5,6", "-z: this value makes no sense"),
        ("latency", "8", "8: expected options only"),
        ("gather", "-k fixed:2", "-k: this value makes no sense"),
        ("bw", "-b double", "-b: this value makes no sense"),
        ("mbw_mr", "-V -W 3", "-V and -W"),
        ("mbw_mr", "-p 2", "-p: expected at most half as many pairs as ranks"),
    ] {
        let Printed { text, status } = programs.run_with(&[], name, arguments, 2);
        assert_eq!(status, 1, "{name} {arguments}: {text}");
        assert!(text.contains(words) && text.contains(&format!("\nUsage: brv_{name} ")), "{text}");
    }
    // Words that others know, or other programs.
    for (name, arguments) in [
        ("latency", "-k rotate"),
        ("allreduce", "-G tty"),
        ("allreduce", "-P x"),
        ("barrier", "-m 8"),
        ("bcast", "-l"),
        ("iallreduce", "-z"),
        ("put_bw", "-T all"),
        ("init", "-i 2"),
    ] {
        let Printed { text, status } = programs.run_with(&[], name, arguments, 2);
        let is_told = text.contains("means nothing to this program") && text.lines().count() == 1;
        assert!(status == 1 && is_told, "{name} {arguments}: {text}");
    }
    for (name, ranks, words) in [("latency", 3, "3 ranks: expected 2"), ("mbw_mr", 1, "expected at least 2")]
    {
        let Printed { text, status } = programs.run_with(&[], name, "", ranks);
        assert!(status == 1 && text.contains(words) && text.lines().count() == 1, "{name}: {text}");
    }
    let (status, text) = outcome(&mut Command::new(programs.folder.join("brv_osu")));
    assert!(status.code() == Some(1) && text.contains("expected to be called by the name"), "{text}");
}

/// A library loaded before Brevity's damages results.
#[test]
fn wrong_results_are_found_and_logged() {
    let programs = Programs::build();
    let damage = programs.stage.path().join("damage.so");
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC"]);
    gcc.arg("-I").arg(source("include")).arg(source("tests/c/wrong_results.c"));
    run(gcc.arg("-o").arg(&damage).arg("-ldl"));
    let variables = [("LD_PRELOAD", damage.to_str().unwrap())];
    let logs = programs.stage.path();
    for name in ["allreduce", "latency", "put_bw", "gtopk_average", "topk_allreduce"] {
        let arguments = format!("-m 64:128 -i 2 -x 0 -clog:{}", logs.display());
        let Printed { text, status } = programs.run_with(&variables, name, &arguments, 2);
        assert_eq!(status, 1, "{name}: {text}");
        let error = format!("DATA VALIDATION ERROR: brv_{name}: ");
        // The row is printed; the next size is not measured.
        assert!(text.contains(&error) && text.contains("                Fail\n"), "{text}");
        assert!(!text.contains("\n128 "), "{text}");
        let starts =
            |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&format!("brv_{name}."));
        let log = fs::read_dir(logs).unwrap().flatten().find(starts);
        let log = fs::read_to_string(log.unwrap_or_else(|| panic!("no log of {name}")).path()).unwrap();
        assert!(log.starts_with("iteration 0, element ") && log.contains(": expected "), "{log}");
    }
}

#[test]
fn launchers_of_mpi_start_the_programs_of_osu() {
    let programs = Programs::build();
    let program = programs.folder.join("brv_allreduce");
    let launchers: [(&str, &[&str]); 2] =
        [("mpirun.openmpi", &["--map-by", ":OVERSUBSCRIBE"]), ("mpiexec.mpich", &["-launcher", "fork"])];
    for (launcher, arguments) in launchers {
        if Command::new(launcher).arg("--version").output().is_err() {
            assert!(!is_required("BREVITY_REQUIRE_LAUNCHERS"), "no {launcher}");
            eprintln!("skipped: no {launcher}");
            continue;
        }
        let mut command = Command::new(launcher);
        command.args(arguments).args(["-n", "2"]).arg(&program).args("-m 4:8 -i 2 -x 1 -c".split(' '));
        // Open MPI refuses to run as root without these.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        prints_sums_of_two_ranks(&mut command);
    }
}

/// Without PMI, and with PMIx.
#[test]
fn srun_starts_the_programs_of_osu() {
    let Some(cluster) = slurm::Cluster::start() else { return };
    let programs = Programs::build();
    for way in ["--mpi=none", "--mpi=pmix"] {
        let mut command = cluster.command("srun");
        command.args([way, "-n", "2"]).arg(programs.folder.join("brv_allreduce"));
        prints_sums_of_two_ranks(command.args("-m 4:8 -i 2 -x 1 -c".split(' ')));
    }
}

fn prints_sums_of_two_ranks(command: &mut Command) {
    let text = run(command);
    assert!(text.contains("# Ranks: 2, "), "{command:?}: {text}");
    assert_eq!(table(&text, &["Avg Latency(us)", "Validation"]).len(), 2, "{command:?}: {text}");
}
