//! `install.sh`: pkg-config and CMake find what it installs, programs link it shared and static, and the
//! folder can be moved.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use ucx_sys_wrap::bootstrap::Choice;

use crate::ranks::launch_with;
use crate::stage::{STRICT_C, Stage, built, outcome, run, source};

fn install(prefix: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg(source("install.sh")).arg(prefix).arg(built()).env_remove("DESTDIR");
    command
}

/// The shared library's installed name.
fn soname() -> String {
    format!("libbrevity.so.{}", brevity_capi::brv_abi_version())
}

/// The output of pkg-config, as words.
fn pkg_config(prefix: &Path, arguments: &[&str]) -> Vec<String> {
    let mut command = Command::new("pkg-config");
    command.args(arguments).arg("brevity").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    run(&mut command).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn an_installed_tree_works_after_it_was_moved() {
    let folder = TempDir::new().unwrap();
    run(&mut install(&folder.path().join("first")));
    let prefix = folder.path().join("moved");
    fs::rename(folder.path().join("first"), &prefix).unwrap();
    assert_eq!(pkg_config(&prefix, &["--modversion"]), [env!("CARGO_PKG_VERSION")]);

    let program = folder.path().join("arguments");
    let mut command = Command::new("gcc");
    command.args(STRICT_C).arg(source("tests/c/arguments.c")).arg("-o").arg(&program);
    run(command.args(pkg_config(&prefix, &["--cflags", "--libs"])).arg("-lm"));
    // Without the symbolic link, as if only a runtime package were installed.
    fs::remove_file(prefix.join("lib/libbrevity.so")).unwrap();
    run(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    let (status, output) = outcome(&mut Command::new(&program));
    assert!(!status.success() && output.contains(&soname()), "{output}");
}

#[test]
fn static_programs_need_no_shared_library() {
    let folder = TempDir::new().unwrap();
    let prefix = folder.path().join("prefix");
    run(&mut install(&prefix));
    for name in ["libbrevity.so", &soname()] {
        fs::remove_file(prefix.join("lib").join(name)).unwrap();
    }
    let program = folder.path().join("arguments");
    link_static(&prefix, &[], "arguments.c", &program);
    run(&mut Command::new(&program));
}

/// Links a program as pkg-config says for libbrevity.a.
fn link_static(prefix: &Path, flags: &[&str], name: &str, program: &Path) {
    let mut command = Command::new("gcc");
    command.args(STRICT_C).args(flags).arg(source("tests/c").join(name)).arg("-o").arg(program);
    run(command.args(pkg_config(prefix, &["--cflags", "--libs", "--static"])).arg("-lm"));
}

/// Without a dynamic linker there is no UCX, and its absence is noticed: loading it would crash.
#[test]
fn a_fully_static_program_joins_without_ucx() {
    let stage = Stage::new();
    let prefix = stage.path().join("prefix");
    run(&mut install(&prefix));
    let program = stage.path().join("gtopk");
    link_static(&prefix, &["-static"], "gtopk.c", &program);
    let (status, listing) = outcome(Command::new("readelf").arg("-l").arg(&program));
    assert!(status.success() && !listing.contains("INTERP"), "{listing}");
    launch_with(&[("UCX_TLS", "tcp,self")], Choice::Auto, &stage, &program, &[], 2);
}

/// The most that the shared library may have without its debug information, built for tests: every
/// collective, dense, compressed and by hosts, is there blocking and started, by messages and over slots, and
/// exchanges are there for gradients of four types. More than this is something that was linked by mistake.
const MOST_BYTES: u64 = 15 << 20;

#[test]
fn debug_information_is_in_a_file_of_its_own() {
    let folder = TempDir::new().unwrap();
    run(&mut install(folder.path()));
    let library = folder.path().join("lib").join(soname());
    let debug = folder.path().join("lib").join(format!("{}.debug", soname()));
    let sections = |file: &Path| run(Command::new("readelf").arg("-SW").arg(file));
    let stripped = sections(&library);
    assert!(!stripped.contains(".debug_") && !stripped.contains(".symtab"), "{stripped}");
    assert!(stripped.contains(".gnu_debuglink"), "{stripped}");
    assert!(sections(&debug).contains(".debug_line"), "{}", sections(&debug));
    let build_id = |file: &Path| {
        let notes = run(Command::new("readelf").arg("-nW").arg(file));
        notes.lines().find(|line| line.contains("Build ID")).map(str::to_owned).unwrap()
    };
    assert_eq!(build_id(&library), build_id(&debug));
    let (content, name) = (fs::read(&library).unwrap(), format!("{}.debug\0", soname()));
    assert!(content.windows(name.len()).any(|bytes| bytes == name.as_bytes()), "no link to {name}");
    assert!(content.len() as u64 <= MOST_BYTES, "{} bytes", content.len());
}

#[test]
fn destdir_goes_before_the_prefix_and_a_second_time_is_fine() {
    let folder = TempDir::new().unwrap();
    for _ in 0..2 {
        run(install(Path::new("/opt/brevity")).env("DESTDIR", folder.path()));
    }
    let lib = folder.path().join("opt/brevity/lib");
    assert_eq!(fs::read_link(lib.join("libbrevity.so")).unwrap(), Path::new(&soname()));
    let config = fs::read_to_string(lib.join("cmake/brevity/brevity-config.cmake")).unwrap();
    assert!(config.contains(&soname()) && !config.contains('@'), "{config}");
    assert!(folder.path().join("opt/brevity/include/brevity.h").exists());
}

#[test]
fn wrong_arguments_are_refused_with_the_remedy() {
    let script = source("install.sh");
    let mut calls = [
        (Command::new("sh"), 2, "expected PREFIX"),
        (Command::new("sh"), 2, "expected an absolute path"),
        (Command::new("sh"), 1, "cargo rustc --release"),
    ];
    calls[0].0.arg(&script);
    calls[1].0.arg(&script).arg("relative");
    calls[2].0.arg(&script).args(["/nowhere/prefix", "/nowhere/built"]);
    for (command, expected, words) in &mut calls {
        let (status, output) = outcome(command);
        assert_eq!(status.code(), Some(*expected), "{output}");
        assert!(output.contains(*words) && output.lines().count() == 1, "{output}");
    }
}

const CMAKE_LISTS: &str = r#"
cmake_minimum_required(VERSION 3.13)
project(user C)
find_package(brevity 0.1 REQUIRED)
foreach(kind brevity static)
  add_executable(with_${kind} ${PROGRAM})
  target_link_libraries(with_${kind} brevity::${kind} m)
endforeach()
"#;

#[test]
fn cmake_finds_both_libraries() {
    if Command::new("cmake").arg("--version").output().is_err() {
        assert!(
            std::env::var_os("BREVITY_REQUIRE_CMAKE").is_none(),
            "no cmake, and BREVITY_REQUIRE_CMAKE is set"
        );
        eprintln!("skipped: no cmake");
        return;
    }
    let folder = TempDir::new().unwrap();
    let (prefix, build) = (folder.path().join("prefix"), folder.path().join("build"));
    run(&mut install(&prefix));
    fs::write(folder.path().join("CMakeLists.txt"), CMAKE_LISTS).unwrap();
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(folder.path()).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    run(configure.arg(format!("-DPROGRAM={}", source("tests/c/arguments.c").display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["with_brevity", "with_static"] {
        run(&mut Command::new(build.join(program)));
    }
}
