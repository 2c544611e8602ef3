//! Gives the shared library the name under which it is installed.

fn main() {
    println!("cargo::rerun-if-changed=include/brevity.h");
    println!("cargo::rerun-if-changed=build.rs");
    let header = include_str!("include/brevity.h");
    let abi = header
        .lines()
        .find_map(|line| line.strip_prefix("#define BRV_ABI_VERSION "))
        .unwrap_or_else(|| panic!("include/brevity.h defines no BRV_ABI_VERSION"));
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbrevity.so.{abi}");
    }
}
