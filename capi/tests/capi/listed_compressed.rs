//! What is made from the list of compressed collectives, as in `listed.rs`, and renewed with it.

use std::fmt::Write;

use crate::list_compressed::{ALL, Entry, Parameter};
use crate::listed::{COLUMNS, comment, declaration, function_in_rust, renewed};

/// What is before and after the section of the header.
const MARKS: [&str; 2] = [
    "/* From here on made from capi/tests/capi/list_compressed.rs. */\n",
    "/* Up to here made from the list of compressed collectives. */\n",
];

/// The parameters that are the entries of a sparse vector.
const ENTRIES: [Parameter; 4] = [
    Parameter::Plain("const uint32_t *", "*const u32", "indices"),
    Parameter::Plain("const float *", "*const f32", "values"),
    Parameter::Plain("size_t ", "usize", "count"),
    Parameter::Plain("size_t ", "usize", "dim"),
];

impl Entry {
    /// Type in C, type in Rust and name of each parameter.
    fn plain(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        let of = |parameter: &Parameter| match *parameter {
            Parameter::Entries => ENTRIES.to_vec(),
            plain => vec![plain],
        };
        let plain = self.parameters.iter().flat_map(of);
        plain
            .map(|parameter| match parameter {
                Parameter::Plain(c, rust, name) => (c, rust, name),
                Parameter::Entries => unreachable!("entries are plain parameters"),
            })
            .collect()
    }

    fn has(&self, name: &str) -> bool {
        self.plain().iter().any(|(_, _, own)| *own == name)
    }

    fn declaration(&self, is_started: bool) -> String {
        let parameters = self.plain().iter().map(|(kind, _, name)| format!("{kind}{name}")).collect();
        declaration(
            &format!("brv_{}{}", if is_started { "i" } else { "" }, self.name),
            parameters,
            is_started,
        )
    }

    fn in_rust(&self, is_started: bool) -> String {
        let (way, request) = if is_started { ("starting", "request, ") } else { ("waiting", "") };
        let plain = self.plain();
        let parameters = plain.iter().map(|(_, kind, name)| format!("{}: {kind}", in_rust(name))).collect();
        let has_entries = self.parameters.contains(&Parameter::Entries);
        let mut fields: Vec<&str> = plain.iter().map(|(_, _, name)| in_rust(name)).collect();
        let mut body = String::new();
        if has_entries {
            fields.splice(..ENTRIES.len(), ["entries"]);
            body += "    let entries = Entries { indices, values, count, dim };\n";
        }
        let (arguments, fields) = (self.arguments, fields.join(", "));
        body += &format!(
            "    let arguments = {arguments} {{ {fields} }};\n    \
             // SAFETY: the caller in C guarantees it.\n    \
             unsafe {{ {way}(group, arguments, {request}options) }}\n"
        );
        function_in_rust(self.name, parameters, is_started, &body)
    }

    /// A function of the tests in C that makes the call, or starts it.
    fn in_test(&self) -> String {
        let name = self.name;
        let begin = format!("static brv_status call_{name}(");
        let space = " ".repeat(begin.len());
        let fields: Vec<String> =
            self.plain().iter().map(|(kind, _, name)| format!("a->{}", in_test(kind, name))).collect();
        let call = |before: &str, end: &str| {
            let (mut text, mut line) = (String::new(), format!("{before}(group, "));
            let space = " ".repeat(before.len() + 1);
            for field in &fields {
                if line.len() + field.len() + end.len() > COLUMNS {
                    writeln!(text, "{}", line.trim_end()).unwrap();
                    line.clone_from(&space);
                }
                line += &format!("{field}, ");
            }
            text + &line + end
        };
        let waits = call(&format!("        return brv_{name}"), "options);");
        let starts = call(&format!("    return brv_i{name}"), "request, options);");
        format!(
            "\n{begin}brv_group *group, const arguments *a, brv_request **request,\n\
             {space}const brv_options *options)\n{{\n    if (request == NULL)\n{waits}\n{starts}\n}}\n"
        )
    }

    fn in_table(&self) -> String {
        let is = |name| u8::from(self.has(name));
        let name = self.name;
        let has = ["indices", "in", "out", "format", "kept"].map(|name| is(name).to_string()).join(", ");
        format!("    {{\"{name}\", call_{name}, {has}}},\n")
    }
}

/// The name of a parameter in Rust.
fn in_rust(name: &'static str) -> &'static str {
    match name {
        "in" => "input",
        "out" => "output",
        name => name,
    }
}

/// The field of the arguments of a test.
fn in_test(kind: &str, name: &'static str) -> &'static str {
    if (kind, name) == ("float *", "kept") { "kept_vector" } else { name }
}

/// The section of the header.
fn section() -> String {
    let mut text = String::new();
    for entry in ALL {
        writeln!(text, "\n{}", comment(entry.docs)).unwrap();
        text += &(entry.declaration(false) + &entry.declaration(true));
    }
    text + "\n"
}

/// A file of functions in Rust.
fn functions(is_started: bool) -> String {
    let (what, way, request) = if is_started {
        ("do not block", "starting", "use crate::request::brv_request;\n")
    } else {
        ("wait", "waiting", "")
    };
    let others = ["Entries", "brv_draw", "brv_leader_sum", "brv_low_rank", "brv_ok_topk", "brv_sparse"];
    let mut names: Vec<&str> = ALL.iter().map(|entry| entry.arguments).chain(others).collect();
    names.push(way);
    names.sort_unstable_by_key(|name| (name.starts_with(char::is_lowercase), *name));
    let mut lines = vec!["   ".to_owned()];
    for name in names {
        let line = lines.last_mut().unwrap();
        if line.len() + name.len() + 2 > COLUMNS {
            lines.push("   ".to_owned());
        }
        *lines.last_mut().unwrap() += &format!(" {name},");
    }
    let mut text = format!(
        "//! Compressed collectives that {what}. Made from `tests/capi/list_compressed.rs`: see\n\
         //! `tests/capi/listed_compressed.rs`.\n\nuse super::{{\n{}\n}};\nuse crate::group::brv_group;\n\
         use crate::options::brv_options;\nuse crate::policy::{{brv_put_back, brv_values}};\n{request}\
         use crate::status::brv_status;\n",
        lines.join("\n")
    );
    ALL.iter().for_each(|entry| text += &entry.in_rust(is_started));
    text
}

/// What the tests in C include.
fn table() -> String {
    let mut fields: Vec<(&str, &str)> = Vec::new();
    for (kind, _, name) in ALL.iter().flat_map(Entry::plain) {
        let name = in_test(kind, name);
        if !fields.iter().any(|(_, known)| *known == name) {
            fields.push((kind, name));
        }
    }
    let mut text = "/* Every compressed collective in C. Made from tests/capi/list_compressed.rs. */\n\
        #ifndef COMPRESSED_LIST_H\n#define COMPRESSED_LIST_H\n\n#include <brevity.h>\n\n\
        typedef struct arguments {\n"
        .to_owned();
    fields.iter().for_each(|(kind, name)| writeln!(text, "    {kind}{name};").unwrap());
    text += "} arguments;\n";
    ALL.iter().for_each(|entry| text += &entry.in_test());
    text += "\ntypedef struct entry {\n    const char *name;\n    brv_status (*call)(brv_group *group, const \
        arguments *a, brv_request **request,\n                       const brv_options *options);\n    \
        int has_entries, has_vector, has_output, has_format, has_kept;\n} entry;\n\n\
        static const entry ALL[] = {\n";
    ALL.iter().for_each(|entry| text += &entry.in_table());
    text + "};\n\n#endif\n"
}

/// The files that are made, but for the header.
pub fn made() -> [(&'static str, String); 3] {
    [
        ("src/compressed/blocking.rs", functions(false)),
        ("src/compressed/started.rs", functions(true)),
        ("tests/c/compressed_list.h", table()),
    ]
}

/// The header with the section of this list.
pub fn renewed_header(header: &str) -> String {
    renewed(header, MARKS, &section())
}
