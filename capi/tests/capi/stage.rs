//! A place where a test compiles and runs C programs against the library that this test was built with.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The limit for a child process.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Warnings are errors: a program that compiles with these compiles everywhere.
pub const STRICT_C: &[&str] = &["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-g"];
/// The same for C++.
pub const STRICT_CPP: &[&str] = &["-std=c++11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-O1", "-g"];

/// Checks the memory that a program passes to the library and the objects that it forgets to free.
const SANITIZED: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// The same where this test was built with ThreadSanitizer, as `ci/sanitize.sh thread` does: both must be.
const FOR_THREADS: &[&str] = &["-fsanitize=thread"];

/// What programs are compiled with, by the variable that `ci/sanitize.sh` sets.
fn sanitizers() -> &'static [&'static str] {
    if std::env::var_os("CAPI_THREAD_SANITIZED").is_some() { FOR_THREADS } else { SANITIZED }
}

/// A temporary folder with the shared library under its final name.
pub struct Stage {
    folder: TempDir,
}

impl Stage {
    pub fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let library = built().join("libbrevity_capi.so");
        assert!(library.exists(), "no {}: cargo builds it with this test", library.display());
        symlink(&library, folder.path().join("libbrevity.so")).unwrap();
        let soname = format!("libbrevity.so.{}", brevity_capi::brv_abi_version());
        symlink(&library, folder.path().join(soname)).unwrap();
        Self { folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Compiles and links `tests/c/<name>`.
    pub fn compile(&self, name: &str) -> PathBuf {
        self.compile_source(&source(&format!("tests/c/{name}")))
    }

    /// Like [`compile`](Self::compile), as the program's users would: no sanitizer interferes when it ends.
    pub fn compile_plain(&self, name: &str) -> PathBuf {
        self.compile_with(&source(&format!("tests/c/{name}")), &[])
    }

    /// Compiles and links a program, and returns its path.
    pub fn compile_source(&self, source: &Path) -> PathBuf {
        self.compile_with(source, sanitizers())
    }

    /// Compiles with these sanitizers.
    pub fn compile_with(&self, source: &Path, sanitizers: &[&str]) -> PathBuf {
        let program = self.path().join(source.file_stem().unwrap());
        let (compiler, flags) = if source.extension().is_some_and(|kind| kind == "c") {
            ("gcc", STRICT_C)
        } else {
            ("g++", STRICT_CPP)
        };
        let object = program.with_extension("o");
        let mut compile = Command::new(compiler);
        compile.args(flags).args(sanitizers).arg("-I").arg(self::source("include")).arg("-c").arg(source);
        run(compile.arg("-o").arg(&object));
        let mut link = Command::new(compiler);
        link.arg(object).arg("-o").arg(&program).arg("-L").arg(self.path());
        link.arg(format!("-Wl,-rpath,{}", self.path().display()));
        if sanitizers == FOR_THREADS {
            add_thread_sanitizer(&mut link);
        } else {
            link.args(sanitizers);
        }
        run(link.args(["-lbrevity", "-lm", "-pthread"]));
        program
    }
}

/// Links the ThreadSanitizer of the Rust compiler, which the library was built with, in place of that of gcc:
/// that has not all that the library calls.
fn add_thread_sanitizer(link: &mut Command) {
    let folder = run(Command::new("rustc").args(["--print", "target-libdir"]));
    let names = fs::read_dir(folder.trim()).unwrap().map(|entry| entry.unwrap().path());
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("librustc-") && name.ends_with("_rt.tsan.a")
    };
    let runtime = names.into_iter().find(is_meant);
    let runtime = runtime.unwrap_or_else(|| panic!("this Rust toolchain has no ThreadSanitizer"));
    link.arg("-Wl,--export-dynamic,--whole-archive").arg(runtime).arg("-Wl,--no-whole-archive");
    link.args(["-ldl", "-lrt", "-lgcc_s"]);
}

/// A path of this package.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where cargo put the libraries: beside this test.
pub fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Runs a command to its end and returns what it printed; fails the test unless it succeeds in time.
pub fn run(command: &mut Command) -> String {
    let (status, output) = outcome(command);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    output
}

/// Runs a command to its end, with its exit status and what it printed on both streams.
pub fn outcome(command: &mut Command) -> (ExitStatus, String) {
    Running::start(command).wait(Instant::now() + DEADLINE)
}

/// A child process; killed and reaped on drop.
pub struct Running {
    child: Child,
    name: String,
    folder: TempDir,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let folder = TempDir::new().unwrap();
        let file = File::create(folder.path().join(OUTPUT)).unwrap();
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let name = format!("{command:?}");
        match command.spawn() {
            Ok(child) => Self { child, name, folder },
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("no {:?}: install gcc, g++, binutils and pkg-config", command.get_program())
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }

    /// Waits for the end, with the exit status and what was printed; fails the test at the deadline.
    pub fn wait(mut self, deadline: Instant) -> (ExitStatus, String) {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status, self.output());
            }
            assert!(Instant::now() < deadline, "{} did not end in time\n{}", self.name, self.output());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn output(&self) -> String {
        fs::read_to_string(self.folder.path().join(OUTPUT)).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Neither does anything if the child has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const OUTPUT: &str = "output";
