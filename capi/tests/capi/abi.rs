//! The binary interface against its record, `abi.txt`: functions, structs, enums and constants.
//!
//! After a change of the header, renew the record with
//! `BREVITY_RENEW_ABI=1 cargo nextest run -p brevity-capi -E 'test(the_interface_is_the_recorded_one)'`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::process::Command;

use crate::header::{exported, header, without_comments};
use crate::stage::{STRICT_C, Stage, run, source};

const RENEW: &str = "BREVITY_RENEW_ABI";
const VERSION: &str = "constant BRV_ABI_VERSION ";

/// What the header declares: one statement of C each.
#[derive(Default)]
struct Interface {
    functions: Vec<String>,
    callbacks: Vec<String>,
    handles: Vec<String>,
    structs: Vec<(String, Vec<String>)>,
    enums: Vec<(String, Vec<String>)>,
    constants: Vec<(String, String)>,
}

impl Interface {
    fn of(header: &str) -> Self {
        let code = without_comments(header).replace("\\\n", " ");
        let mut interface = Self::default();
        for define in code.lines().filter_map(|line| line.strip_prefix("#define BRV_")) {
            interface.define(define);
        }
        let declarations: String =
            code.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join(" ");
        let declarations = declarations.split_once("extern \"C\" {").unwrap().1.rsplit_once('}').unwrap().0;
        statements(declarations).iter().for_each(|statement| interface.declare(statement));
        interface
    }

    /// Initialisers, and the version of the library, are no part of the binary interface.
    fn define(&mut self, define: &str) {
        let (name, value) = define.split_once(' ').unwrap_or((define, ""));
        let is_part = !name.contains('(') && !name.contains("INIT") && !value.contains("INIT(");
        if is_part && !name.starts_with("VERSION") {
            self.constants.push((format!("BRV_{name}"), value.trim().into()));
        }
    }

    fn declare(&mut self, statement: &str) {
        let body = |begin: &str, separator| {
            let (name, rest) = statement.strip_prefix(begin)?.split_once(" {")?;
            let items = rest.rsplit_once('}').unwrap().0.split(separator);
            let name_of = |item: &str| {
                let item = item.split(['[', '=']).next().unwrap().trim();
                item.rsplit([' ', '*']).next().unwrap().to_owned()
            };
            Some((name.to_owned(), items.map(name_of).filter(|name| !name.is_empty()).collect()))
        };
        if let Some(found) = body("typedef struct ", ';') {
            self.structs.push(found);
        } else if let Some(found) = body("typedef enum ", ',') {
            self.enums.push(found);
        } else if let Some(handle) = statement.strip_prefix("typedef struct ") {
            self.handles.push(handle.rsplit(' ').next().unwrap().into());
        } else if let Some(callback) = statement.strip_prefix("typedef ") {
            self.callbacks.push(callback.into());
        } else {
            self.functions.push(statement.into());
        }
    }

    /// A program that prints what only the compiler knows.
    fn program(&self) -> String {
        let mut program = "#include <brevity.h>\n#include <stdio.h>\n#define SIZE(x) (unsigned)sizeof(x)\n\
            #define FIELD(s, f) printf(\"  %s at %u, %u bytes\\n\", #f, (unsigned)offsetof(struct s, f), \
            SIZE(((struct s *)0)->f))\n#define VALUE(v) printf(\"  %s = %ld\\n\", #v, (long)v)\n\
            int main(void) {\n"
            .to_owned();
        for (name, fields) in &self.structs {
            let aligned = format!("struct a_{name} {{ char c; {name} s; }};");
            writeln!(
                program,
                "{{ {aligned} printf(\"struct {name}: %u bytes, aligned to %u\\n\", SIZE({name}), \
                (unsigned)offsetof(struct a_{name}, s)); }}"
            )
            .unwrap();
            fields.iter().for_each(|field| writeln!(program, "FIELD({name}, {field});").unwrap());
        }
        for (name, values) in &self.enums {
            writeln!(program, "printf(\"enum {name}: %u bytes\\n\", SIZE({name}));").unwrap();
            values.iter().for_each(|value| writeln!(program, "VALUE({value});").unwrap());
        }
        program + "return 0; }\n"
    }

    fn record(&self, layouts: &str, exported: &BTreeSet<String>) -> String {
        let mut lines: Vec<String> =
            self.constants.iter().map(|(name, value)| format!("constant {name} {value}")).collect();
        lines.extend(self.handles.iter().map(|name| format!("handle {name}")));
        lines.extend(self.callbacks.iter().map(|callback| format!("callback {callback}")));
        for function in &self.functions {
            let is_exported = exported.iter().any(|name| function.contains(&format!("{name}(")));
            let note = if is_exported { "" } else { " (not in the library)" };
            lines.push(format!("function {function}{note}"));
        }
        let is_declared = |name: &&String| self.functions.iter().any(|f| f.contains(&format!("{name}(")));
        let undeclared = exported.iter().filter(|name| !is_declared(name));
        lines.extend(undeclared.map(|name| format!("function {name} (not in the header)")));
        // A line is found by its own text, so fields and values name their type.
        let mut of = "";
        for line in layouts.lines() {
            match line.strip_prefix("  ") {
                Some(part) => lines.push(format!("{of}.{part}")),
                None => {
                    of = line.split(':').next().unwrap();
                    lines.push(line.into());
                }
            }
        }
        lines.join("\n") + "\n"
    }
}

/// Statements outside of braces, each with single spaces.
fn statements(code: &str) -> Vec<String> {
    let (mut depth, mut found) = (0, vec![String::new()]);
    for sign in code.chars() {
        depth += i32::from(sign == '{') - i32::from(sign == '}');
        if sign == ';' && depth == 0 {
            found.push(String::new());
        } else {
            found.last_mut().unwrap().push(sign);
        }
    }
    let found = found.iter().map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    found.filter(|text| !text.is_empty()).collect()
}

/// The lines of one text that another does not have, each after a sign.
fn missing(from: &str, of: &str, sign: char) -> String {
    let known: BTreeSet<&str> = from.lines().collect();
    of.lines().filter(|line| !known.contains(line)).map(|line| format!("{sign} {line}\n")).collect()
}

/// What to do about a difference; `None` if there is none.
fn difference(recorded: &str, found: &str) -> Option<String> {
    let (gone, new) = (missing(found, recorded, '-'), missing(recorded, found, '+'));
    if gone.is_empty() && new.is_empty() {
        return None;
    }
    let rises = gone.contains(VERSION);
    let version = match (gone.is_empty(), rises) {
        (true, _) => "Nothing recorded has changed: programs go on working, and BRV_ABI_VERSION stays.",
        (false, true) => "BRV_ABI_VERSION has changed, as it must when recorded lines change.",
        (false, false) => {
            "Recorded lines have changed or are gone, which breaks programs that were compiled with a \
             released header: raise BRV_ABI_VERSION in brevity.h and src/version.rs, unless they were never \
             released."
        }
    };
    Some(format!(
        "the interface differs from capi/abi.txt:\n{gone}{new}{version}\nTo renew the record: {RENEW}=1 \
         cargo nextest run -p brevity-capi -E 'test(the_interface_is_the_recorded_one)'"
    ))
}

#[test]
fn the_interface_is_the_recorded_one() {
    let interface = Interface::of(&header());
    let stage = Stage::new();
    let (file, program) = (stage.path().join("layouts.c"), stage.path().join("layouts"));
    fs::write(&file, interface.program()).unwrap();
    let mut command = Command::new("gcc");
    run(command.args(STRICT_C).arg("-I").arg(source("include")).arg(&file).arg("-o").arg(&program));
    let found = interface.record(&run(&mut Command::new(&program)), &exported());
    let record = source("abi.txt");
    let recorded = fs::read_to_string(&record).unwrap_or_default();
    let Some(difference) = difference(&recorded, &found) else { return };
    assert!(std::env::var_os(RENEW).is_some(), "{difference}");
    fs::write(record, found).unwrap();
    eprintln!("{difference}");
}

#[test]
fn only_changes_of_recorded_lines_need_a_new_version() {
    let old = "constant BRV_ABI_VERSION 2\nfunction int f(void)\n";
    assert_eq!(difference(old, old), None);
    let added = difference(old, &format!("{old}function int g(void)\n")).unwrap();
    assert!(added.contains("+ function int g(void)") && added.contains("BRV_ABI_VERSION stays"), "{added}");
    let changed = difference(old, &old.replace("(void)", "(long)")).unwrap();
    assert!(
        changed.contains("- function int f(void)") && changed.contains("raise BRV_ABI_VERSION"),
        "{changed}"
    );
    let risen = difference(old, &old.replace("(void)", "(long)").replace('2', "3")).unwrap();
    assert!(risen.contains("has changed, as it must") && risen.contains(RENEW), "{risen}");
}

#[test]
fn every_declaration_is_recorded_as_what_it_is() {
    let interface = Interface::of(
        "#define BRV_ONE 1 /* x */\n#define BRV_X_INIT \\\n  {1}\nextern \"C\" {\ntypedef struct h h;\n\
         typedef enum e { A = 1, /* , */ B = 2 } e;\ntypedef struct s { int *a; char b[BRV_ONE]; } s;\n\
         typedef int (*call)(int);\nconst char *f(s *first,\n   int second);\n}\n",
    );
    assert_eq!(interface.constants, [("BRV_ONE".into(), "1".into())]);
    assert_eq!(interface.handles, ["h"]);
    assert_eq!(interface.enums, [("e".into(), vec!["A".into(), "B".into()])]);
    assert_eq!(interface.structs, [("s".into(), vec!["a".into(), "b".into()])]);
    assert_eq!(interface.callbacks, ["int (*call)(int)"]);
    assert_eq!(interface.functions, ["const char *f(s *first, int second)"]);
    let record =
        interface.record("struct s: 9 bytes\n  a at 0, 8 bytes\n", &["f", "k"].map(String::from).into());
    assert!(
        record.contains("function const char *f(s *first, int second)\nfunction k (not in the header)\n")
    );
    assert!(record.ends_with("struct s: 9 bytes\nstruct s.a at 0, 8 bytes\n"), "{record}");
}
