//! The header against the library: names, signatures, constants and versions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use brevity_capi::{algorithm_name, brv_status};
use brevity_collectives::{DataType, ReduceOp};
use cbindgen::{Builder, Config, ItemType, Language};

use crate::stage::{STRICT_C, STRICT_CPP, Stage, built, run, source};

pub fn header() -> String {
    fs::read_to_string(source("include/brevity.h")).unwrap()
}

/// The code of a header.
pub fn without_comments(header: &str) -> String {
    let mut code = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").unwrap().1;
    }
    code + rest
}

/// The functions that the header declares: the words before each opening parenthesis outside of comments.
fn declared() -> BTreeSet<String> {
    without_comments(&header())
        .split('(')
        .filter_map(|before| before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next())
        .filter(|name| name.starts_with("brv_"))
        .map(str::to_owned)
        .collect()
}

/// The functions that the shared library exports.
pub fn exported() -> BTreeSet<String> {
    let listing =
        run(Command::new("nm").args(["-D", "--defined-only"]).arg(built().join("libbrevity_capi.so")));
    listing.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_the_header_declares_and_nothing_else() {
    assert!(declared().len() >= 20, "{:?}", declared());
    assert_eq!(declared(), exported());
}

/// The files of Rust in a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Declares every function a second time, as the Rust source has it: C refuses to compile if the two differ.
#[test]
fn signatures_agree() {
    let mut config = Config { language: Language::C, no_includes: true, ..Config::default() };
    config.export.item_types = vec![ItemType::Functions];
    config.style = cbindgen::Style::Type;
    let files = sources(&source("src")).into_iter();
    let builder = files.fold(Builder::new().with_config(config), |builder, file| builder.with_src(file));
    let mut generated = Vec::new();
    builder.generate().unwrap().write(&mut generated);
    let generated = String::from_utf8(generated).unwrap();
    for name in declared() {
        assert!(generated.contains(&format!("{name}(")), "{name} was not found in src:\n{generated}");
    }

    let stage = Stage::new();
    let twice = stage.path().join("twice.c");
    fs::write(&twice, format!("#include <brevity.h>\n{generated}")).unwrap();
    let mut command = Command::new("gcc");
    run(command.args(["-std=c99", "-Werror", "-fsyntax-only", "-I"]).arg(source("include")).arg(twice));
}

#[test]
fn the_header_stands_alone_in_c_and_cplusplus() {
    let stage = Stage::new();
    for (compiler, flags, name) in [("gcc", STRICT_C, "alone.c"), ("g++", STRICT_CPP, "alone.cpp")] {
        let file = stage.path().join(name);
        fs::write(&file, "#include <brevity.h>\nbrv_status first(void);\n").unwrap();
        run(Command::new(compiler)
            .args(flags)
            .args(["-fsyntax-only", "-I"])
            .arg(source("include"))
            .arg(file));
    }
}

/// The value of a constant in the header, as `NAME = 1` or `#define NAME 1`.
fn constant(name: &str) -> String {
    let header = header();
    let line = header.lines().map(str::trim).find(|line| {
        line.starts_with(&format!("{name} = ")) || line.starts_with(&format!("#define {name} "))
    });
    let line = line.unwrap_or_else(|| panic!("the header has no {name}"));
    line.trim_start_matches("#define").trim_start()[name.len()..]
        .trim_start_matches([' ', '='])
        .split([',', ' '])
        .next()
        .unwrap()
        .to_owned()
}

#[test]
fn status_numbers_agree() {
    let pairs = [
        ("BRV_OK", brv_status::Ok),
        ("BRV_ERR_ARGUMENT", brv_status::Argument),
        ("BRV_ERR_PEER_LOST", brv_status::PeerLost),
        ("BRV_ERR_ABORTED", brv_status::Aborted),
        ("BRV_ERR_TIMEOUT", brv_status::Timeout),
        ("BRV_ERR_MISMATCH", brv_status::Mismatch),
        ("BRV_ERR_NON_FINITE", brv_status::NonFinite),
        ("BRV_ERR_ENVIRONMENT", brv_status::Environment),
        ("BRV_ERR_PROTOCOL", brv_status::Protocol),
        ("BRV_ERR_TRANSPORT", brv_status::Transport),
        ("BRV_ERR_PANIC", brv_status::Panic),
        ("BRV_ERR_EXHAUSTED", brv_status::Exhausted),
        ("BRV_ERR_CANCELED", brv_status::Canceled),
        ("BRV_ERR_TRUNCATED", brv_status::Truncated),
        ("BRV_ERR_USER", brv_status::User),
        ("BRV_ERR_EXCLUDED", brv_status::Excluded),
        ("BRV_ERR_NO_MAJORITY", brv_status::NoMajority),
        ("BRV_ERR_UNSUPPORTED", brv_status::Unsupported),
        ("BRV_PENDING", brv_status::Pending),
    ];
    for (name, status) in pairs {
        assert_eq!(constant(name), (status as u32).to_string(), "{name}");
    }
    let listed = header().lines().filter(|line| line.starts_with("    BRV_ERR_")).count();
    assert_eq!(listed, pairs.len() - 2, "a status is missing from this test");
}

#[test]
fn types_reductions_and_algorithms_have_the_numbers_of_rust() {
    let agrees = |begin: &str, name: &str, number: u32| {
        let name = format!("{begin}{}", name.to_uppercase().replace('-', "_"));
        assert_eq!(constant(&name), number.to_string(), "{name}");
    };
    DataType::ALL.iter().for_each(|data| agrees("BRV_", data.name(), data.number().into()));
    ReduceOp::ALL.iter().for_each(|op| agrees("BRV_", op.name(), op.number().into()));
    let mut algorithms = 0;
    while let Some(name) = algorithm_name(algorithms + 1) {
        algorithms += 1;
        agrees("BRV_ALGORITHM_", name, algorithms);
    }
    let header = header();
    let listed = header.lines().filter(|line| line.starts_with("    BRV_ALGORITHM_")).count();
    assert_eq!(listed as u32, algorithms + 2, "one is missing in Rust");
}

#[test]
fn versions_agree() {
    assert_eq!(constant("BRV_VERSION"), format!("\"{}\"", env!("CARGO_PKG_VERSION")));
    let numbers = ["MAJOR", "MINOR", "PATCH"].map(|part| constant(&format!("BRV_VERSION_{part}")));
    assert_eq!(numbers.join("."), env!("CARGO_PKG_VERSION"));
    assert_eq!(constant("BRV_ABI_VERSION"), brevity_capi::brv_abi_version().to_string());
}

#[test]
fn the_soname_has_the_abi_version() {
    let listing = run(Command::new("readelf").arg("-d").arg(built().join("libbrevity_capi.so")));
    let soname = format!("[libbrevity.so.{}]", constant("BRV_ABI_VERSION"));
    assert!(listing.lines().any(|line| line.contains("SONAME") && line.contains(&soname)), "{listing}");
}
