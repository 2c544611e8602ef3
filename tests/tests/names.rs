//! All environment variables are in one list, and every one in the list is documented.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use brevity::transport::bootstrap::{NAMES, TEST_NAMES};

/// The sources of what users run or link.
const SOURCES: [&str; 7] = [
    "brevity/src",
    "capi/src",
    "cli/src",
    "collectives/src",
    "compress/src",
    "ucx-sys-wrap/src",
    "ucx-sys-wrap/pmi/src",
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The texts of all files below a folder whose names have this ending.
fn texts(folder: &Path, ending: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(texts(&entry, ending));
        } else if entry.to_str().unwrap().ends_with(ending) && !entry.ends_with("bootstrap/names.rs") {
            found.push(fs::read_to_string(&entry).unwrap());
        }
    }
    found
}

/// The names of variables between two marks.
fn names_between(text: &str, mark: char) -> impl Iterator<Item = String> {
    let is_name = |word: &&str| {
        let stem = word.strip_prefix("BREVITY_").unwrap_or_default();
        !stem.is_empty() && stem.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    };
    text.split(mark).filter(is_name).map(str::to_owned)
}

#[test]
fn every_variable_of_the_sources_is_in_the_list() {
    let mut used = BTreeSet::new();
    for text in SOURCES.iter().flat_map(|folder| texts(&top().join(folder), ".rs")) {
        // The tests of a file are at its end, and may use other variables.
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        used.extend(names_between(code, '"'));
    }
    let known: BTreeSet<String> = NAMES.map(str::to_owned).into();
    let of_tests: BTreeSet<String> = TEST_NAMES.map(str::to_owned).into();
    let missing: Vec<_> = used.difference(&known).filter(|name| !of_tests.contains(*name)).collect();
    assert!(missing.is_empty(), "add them to NAMES in bootstrap/names.rs: {missing:?}");
    let unused: Vec<_> = known.difference(&used).collect();
    assert!(
        unused.is_empty(),
        "nothing reads them: take them out of NAMES in bootstrap/names.rs: {unused:?}"
    );
}

/// The library would warn of any other.
#[test]
fn every_variable_of_scripts_is_in_the_lists() {
    let text = texts(&top().join("ci"), ".sh").concat();
    let words = text.split(|letter: char| !letter.is_ascii_uppercase() && letter != '_');
    let used: BTreeSet<&str> = words.filter(|word| word.starts_with("BREVITY_")).collect();
    let is_known = |name: &&&str| NAMES.contains(*name) || TEST_NAMES.contains(*name);
    let unknown: Vec<_> = used.iter().filter(|name| !is_known(name)).collect();
    assert!(used.len() > 5 && unknown.is_empty(), "add them to bootstrap/names.rs: {unknown:?}");
}

#[test]
fn every_name_in_the_list_is_explained() {
    let mut text = texts(&top().join("docs"), ".md");
    text.extend(["README.md", "CONTRIBUTING.md"].map(|file| fs::read_to_string(top().join(file)).unwrap()));
    // Some appear with a value in the same marks.
    let text = text.concat().replace('=', "`");
    let explained: BTreeSet<String> = names_between(&text, '`').collect();
    let missing: Vec<_> =
        NAMES.iter().chain(&TEST_NAMES).filter(|name| !explained.contains(**name)).collect();
    assert!(missing.is_empty(), "neither README.md, CONTRIBUTING.md nor docs explain {missing:?}");
    let unknown: Vec<_> = explained
        .iter()
        .filter(|name| !NAMES.contains(&name.as_str()) && !TEST_NAMES.contains(&name.as_str()))
        .collect();
    assert!(unknown.is_empty(), "add them to bootstrap/names.rs, or take them out of the texts: {unknown:?}");
}
