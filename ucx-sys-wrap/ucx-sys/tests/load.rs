//! Loading: the library that is there, and every way in which it may be unusable.

#![allow(clippy::unwrap_used)] // all of this is tests, also outside of #[test]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use brevity_ucx_sys::{LoadError, Ucp, ucs_status_t};

const REMEDY: &str =
    "install UCX 1.13 or newer (package libucx0 or ucx), or set BREVITY_UCX_LIB to its libucp.so.0";

fn load(path: &Path) -> Result<Ucp, LoadError> {
    // SAFETY: the files of these tests are no UCX, or have functions of UCX's types.
    unsafe { Ucp::load(Some(path)) }
}

/// Compiles a library with the C compiler that links Rust programs as well.
fn library(folder: &Path, source: &str) -> PathBuf {
    let (input, output) = (folder.join("fake.c"), folder.join("libucp.so.0"));
    std::fs::write(&input, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or("cc".into());
    let status =
        Command::new(compiler).args(["-shared", "-fPIC", "-o"]).args([&output, &input]).status().unwrap();
    assert!(status.success());
    output
}

fn get_version(major: u32, minor: u32, release: u32) -> String {
    format!(
        "void ucp_get_version(unsigned *a, unsigned *b, unsigned *c)\
         {{ *a = {major}; *b = {minor}; *c = {release}; }}"
    )
}

#[test]
fn a_missing_file_is_named_with_the_remedy() {
    let error = load(Path::new("/nonexistent/libucp.so.0")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no UCX library (looked for /nonexistent/libucp.so.0): \
             cannot open shared object file: No such file or directory; {REMEDY}"
        )
    );
}

#[test]
fn a_file_that_is_no_library_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libucp.so.0");
    std::fs::write(&path, "no library\n").unwrap();
    let Err(LoadError::NotLoaded { looked_for, reason }) = load(&path) else {
        panic!("loaded a text file");
    };
    assert_eq!(looked_for, path);
    assert!(!reason.is_empty() && !reason.contains('\n'), "{reason}");
}

#[test]
fn a_library_that_is_not_ucx_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = library(folder.path(), "int unrelated(void) { return 0; }");
    let error = load(&path).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{} is not a complete UCX library, it lacks ucp_get_version; {REMEDY}", path.display())
    );
}

#[test]
fn other_versions_are_refused_before_symbols_are_missed() {
    for version in [(1, 12, 1), (0, 99, 0), (2, 0, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let path = library(folder.path(), &get_version(version.0, version.1, version.2));
        let error = load(&path).unwrap_err();
        let (major, minor, release) = version;
        assert_eq!(
            error.to_string(),
            format!(
                "{} is UCX {major}.{minor}.{release}, expected 1.x from 1.13 on; {REMEDY}",
                path.canonicalize().unwrap().display()
            )
        );
    }
}

#[test]
fn every_missing_symbol_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = get_version(1, 13, 0) + "\nvoid ucp_cleanup(void *context) {}";
    let Err(LoadError::MissingSymbols { path, names }) = load(&library(folder.path(), &source)) else {
        panic!("loaded a library of two functions");
    };
    assert_eq!(path.file_name().unwrap(), "libucp.so.0");
    for name in ["ucp_init_version", "ucp_tag_send_nbx", "ucp_ep_query", "ucs_status_string"] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
    }
    for name in ["ucp_get_version", "ucp_cleanup"] {
        assert!(!names.contains(&name), "{name} is among {names:?}");
    }
}

#[test]
fn the_real_library_reports_version_path_and_words() {
    let Some(ucp) = common::ucx() else { return };
    assert!(ucp.version() >= (1, 13, 0), "{ucp:?}");
    assert!(ucp.path().is_absolute() && ucp.path().is_file(), "{ucp:?}");
    let name = ucp.path().file_name().unwrap().to_string_lossy();
    assert!(name.starts_with("libucp"), "{ucp:?}");
    // SAFETY: the string is a constant of a library that stays loaded.
    let text = unsafe { std::ffi::CStr::from_ptr(ucp.ucp_get_version_string()) };
    let (major, minor, release) = ucp.version();
    let text = text.to_str().unwrap();
    assert!(text.starts_with(&format!("{major}.{minor}.{release}")), "{text}");
    assert_eq!(ucp.status_text(ucs_status_t::UCS_OK), "Success");
    assert_eq!(ucp.status_text(ucs_status_t::UCS_ERR_CANCELED), "Request canceled");
    assert!(ucp.status_text(ucs_status_t(-99)).contains("-99"));
}

#[test]
fn loading_twice_gives_the_same_library() {
    let (Some(first), Some(second)) = (common::ucx(), common::ucx()) else {
        return;
    };
    assert_eq!(first.path(), second.path());
    let path = first.path().to_owned();
    drop((first, second));
    assert_eq!(load(&path).unwrap().path(), path);
}
