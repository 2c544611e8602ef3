//! What is made from the list of dense collectives: the functions of the library, their part of the header,
//! and the table that the tests in C go through.
//!
//! After a change of the list, renew it with
//! `BREVITY_RENEW_C=1 cargo nextest run -p brevity-capi -E 'test(everything_is_made_from_the_list)'`.

use std::fmt::Write;
use std::fs;

use crate::list::{ALL, Entry, Parameter};
use crate::listed_compressed;
use crate::stage::source;

const RENEW: &str = "BREVITY_RENEW_C";

/// What is before and after the section of the header.
const MARKS: [&str; 2] =
    ["/* From here on made from capi/tests/capi/list.rs. */\n", "/* Up to here made from the list. */\n"];

pub const COLUMNS: usize = 110;

impl Parameter {
    /// The name in C.
    fn name(self) -> &'static str {
        match self {
            Self::In(name) | Self::Out(name) => name,
            Self::N => "n",
            Self::Lengths => "lengths",
            Self::Sent => "sent",
            Self::Received => "received",
            Self::Type => "type",
            Self::Reduction => "reduction",
            Self::Root => "root",
        }
    }

    /// The declaration in C.
    fn in_c(self) -> String {
        let name = self.name();
        match self {
            Self::In(_) => format!("const void *{name}"),
            Self::Out(_) => format!("void *{name}"),
            Self::N => format!("size_t {name}"),
            Self::Lengths | Self::Sent | Self::Received => format!("const size_t *{name}"),
            Self::Type => format!("brv_type {name}"),
            Self::Reduction => format!("brv_reduction {name}"),
            Self::Root => format!("int32_t {name}"),
        }
    }

    /// The declaration in Rust.
    fn in_rust(self) -> String {
        let (name, kind) = match self {
            Self::In(_) => ("input", "*const c_void"),
            Self::Out(_) => ("output", "*mut c_void"),
            Self::N => ("n", "usize"),
            Self::Lengths | Self::Sent | Self::Received => (self.name(), "*const usize"),
            Self::Type => ("r#type", "brv_type"),
            Self::Reduction => ("reduction", "brv_reduction"),
            Self::Root => ("root", "i32"),
        };
        format!("{name}: {kind}")
    }

    /// The field of the arguments of a test.
    fn in_test(self) -> &'static str {
        match self {
            Self::In(_) => "in",
            Self::Out(_) => "out",
            Self::Sent => "lengths",
            other => other.name(),
        }
    }
}

impl Entry {
    fn has(&self, parameter: Parameter) -> bool {
        self.parameters.contains(&parameter)
    }

    /// The declaration of a function in C.
    fn declaration(&self, is_started: bool) -> String {
        let parameters = self.parameters.iter().map(|parameter| parameter.in_c()).collect();
        declaration(&self.function(is_started), parameters, is_started)
    }

    fn function(&self, is_started: bool) -> String {
        format!("brv_{}{}", if is_started { "i" } else { "" }, self.name)
    }

    /// A function in Rust.
    fn in_rust(&self, is_started: bool) -> String {
        let way = if is_started { "starting" } else { "waiting" };
        let parameters = self.parameters.iter().map(|parameter| parameter.in_rust()).collect();
        let operation = self.operation;
        let (arguments, request) = (self.arguments(), if is_started { "request, " } else { "" });
        let body = format!(
            "    let arguments = {arguments};\n    // SAFETY: the caller in C guarantees it.\n    \
             unsafe {{ {way}(group, Operation::{operation}, arguments, {request}options) }}\n"
        );
        function_in_rust(self.name, parameters, is_started, &body)
    }

    fn arguments(&self) -> &'static str {
        if self.parameters.is_empty() {
            return "Arguments::NONE";
        }
        let has_input = self.parameters.iter().any(|parameter| matches!(parameter, Parameter::In(_)));
        match (has_input, self.has(Parameter::N), self.has(Parameter::Lengths)) {
            (false, ..) => "Arguments { input: std::ptr::null(), output, count: Count::Each(n), r#type }",
            (_, true, _) => "Arguments { input, output, count: Count::Each(n), r#type }",
            (_, _, true) => "Arguments { input, output, count: Count::Lengths(lengths), r#type }",
            _ => "Arguments { input, output, count: Count::SentAndReceived(sent, received), r#type }",
        }
    }

    /// A function of the tests in C that makes the call, or starts it.
    fn in_test(&self) -> String {
        let name = self.name;
        let fields: String =
            self.parameters.iter().map(|parameter| format!(", a->{}", parameter.in_test())).collect();
        let begin = format!("static brv_status call_{name}(");
        let space = " ".repeat(begin.len());
        let start = format!("return brv_i{name}(group{fields},");
        format!(
            "\n{begin}brv_group *group, const arguments *a, brv_request **request,\n\
             {space}const brv_options *options)\n{{\n    (void)a;\n    if (request == NULL)\n        \
             return brv_{name}(group{fields}, options);\n    {start}\n{}request, options);\n}}\n",
            " ".repeat("    return brv_i(".len() + name.len())
        )
    }

    /// The entry of the table of the tests in C.
    fn in_table(&self) -> String {
        let is = |parameter| u8::from(self.has(parameter));
        let has_lengths = is(Parameter::Lengths) | is(Parameter::Sent);
        let (name, reduction, root) = (self.name, is(Parameter::Reduction), is(Parameter::Root));
        format!("    {{\"{name}\", call_{name}, {has_lengths}, {reduction}, {root}}},\n")
    }
}

/// The declaration in C of a function with these parameters between the group and the options.
pub fn declaration(function: &str, parameters: Vec<String>, is_started: bool) -> String {
    let begin = format!("brv_status {function}(");
    let mut all = vec!["brv_group *group".to_owned()];
    all.extend(parameters);
    all.extend(is_started.then(|| "brv_request **request".to_owned()));
    all.push("const brv_options *options".to_owned());
    let count = all.len();
    let (mut text, mut line) = (String::new(), begin.clone());
    for (index, parameter) in all.into_iter().enumerate() {
        let end = if index + 1 == count { ");" } else { "," };
        let is_first = line.len() == begin.len();
        if line.len() + usize::from(!is_first) + parameter.len() + end.len() > COLUMNS {
            writeln!(text, "{line}").unwrap();
            line = " ".repeat(begin.len());
        } else if !is_first {
            line.push(' ');
        }
        line += &(parameter + end);
    }
    text + &line + "\n"
}

/// The function in Rust of a collective with these parameters, which waits for it or starts it.
pub fn function_in_rust(name: &str, parameters: Vec<String>, is_started: bool, body: &str) -> String {
    let (what, way) = if is_started { ("Starts", "starting") } else { ("Makes", "waiting") };
    let article = if name.starts_with(['a', 'o']) { "an" } else { "a" };
    let shown = name.replace('_', "-");
    let text = format!(
        "\n/// {what} {article} {shown}.\n///\n/// # Safety\n/// As for `{way}` in this module's parent.\n\
         #[unsafe(no_mangle)]\n"
    );
    let mut all = vec!["group: *mut brv_group".to_owned()];
    all.extend(parameters);
    all.extend(is_started.then(|| "request: *mut *mut brv_request".to_owned()));
    all.push("options: *const brv_options".to_owned());
    let i = if is_started { "i" } else { "" };
    let (begin, end) = (format!("pub unsafe extern \"C\" fn brv_{i}{name}("), ") -> brv_status {\n");
    let line = format!("{begin}{}{end}", all.join(", "));
    // As rustfmt has it.
    let fits = line.len() <= COLUMNS + 1;
    let line = if fits { line } else { format!("{begin}\n    {},\n{end}", all.join(",\n    ")) };
    text + &line + body + "}\n"
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

/// Paragraphs as a comment in C.
pub fn comment(docs: &str) -> String {
    let mut lines = vec!["/*".to_owned()];
    for (index, paragraph) in docs.split("\n\n").enumerate() {
        if index > 0 {
            lines.extend([" *", " *"].map(String::from));
        }
        for word in paragraph.split_whitespace() {
            if lines[lines.len() - 1].len() + 1 + word.len() > COLUMNS {
                lines.push(" *".to_owned());
            }
            let last = lines.len() - 1;
            lines[last] += &format!(" {word}");
        }
    }
    let fits = lines[lines.len() - 1].len() + " */".len() <= COLUMNS;
    lines.join("\n") + if fits { " */" } else { "\n */" }
}

/// A file of functions in Rust.
fn functions(is_started: bool) -> String {
    let (what, names, request) = if is_started {
        ("do not block", "starting", "use crate::request::brv_request;\n")
    } else {
        ("wait", "waiting", "")
    };
    let mut text = format!(
        "//! Dense collectives that {what}. Made from `tests/capi/list.rs`: see `tests/capi/listed.rs`.\n\
         \n\
         use std::ffi::c_void;\n\nuse super::{{Arguments, Count, Operation, {names}}};\n\
         use crate::element::{{brv_reduction, brv_type}};\nuse crate::group::brv_group;\n\
         use crate::options::brv_options;\n{request}use crate::status::brv_status;\n"
    );
    ALL.iter().for_each(|entry| text += &entry.in_rust(is_started));
    text
}

/// What the tests in C include.
fn table() -> String {
    let mut text = "/* Every dense collective in C. Made from tests/capi/list.rs: see listed.rs there. */\n\
        #ifndef DENSE_LIST_H\n#define DENSE_LIST_H\n\n#include <brevity.h>\n\n\
        typedef struct arguments {\n    const void *in;\n    void *out;\n    size_t n;\n    \
        const size_t *lengths;\n    const size_t *received;\n    brv_type type;\n    \
        brv_reduction reduction;\n    int32_t root;\n} arguments;\n"
        .to_owned();
    ALL.iter().for_each(|entry| text += &entry.in_test());
    text += "\ntypedef struct entry {\n    const char *name;\n    brv_status (*call)(brv_group *group, const \
        arguments *a, brv_request **request,\n                       const brv_options *options);\n    \
        int has_lengths, has_reduction, has_root;\n} entry;\n\nstatic const entry ALL[] = {\n";
    ALL.iter().for_each(|entry| text += &entry.in_table());
    text + "};\n\n#endif\n"
}

/// The header with a section between these marks.
pub fn renewed(header: &str, marks: [&str; 2], section: &str) -> String {
    let (before, rest) = header.split_once(marks[0]).unwrap();
    let (_, after) = rest.split_once(marks[1]).unwrap();
    [before, marks[0], section, marks[1], after].concat()
}

#[test]
fn everything_is_made_from_the_list() {
    let read = |path: &str| fs::read_to_string(source(path)).unwrap_or_default();
    let header = renewed(&read("include/brevity.h"), MARKS, &section());
    let mut made = vec![
        ("src/dense/blocking.rs", functions(false)),
        ("src/dense/started.rs", functions(true)),
        ("tests/c/dense_list.h", table()),
        ("include/brevity.h", listed_compressed::renewed_header(&header)),
    ];
    made.extend(listed_compressed::made());
    let differing: Vec<_> = made.iter().filter(|(path, text)| read(path) != *text).collect();
    if std::env::var_os(RENEW).is_some() {
        differing.iter().for_each(|(path, text)| fs::write(source(path), text).unwrap());
        return;
    }
    let paths: Vec<_> = differing.iter().map(|(path, _)| path).collect();
    assert!(
        paths.is_empty(),
        "{paths:?} are not what tests/capi/list.rs and list_compressed.rs say: change the list, then renew \
         them with {RENEW}=1 cargo nextest run -p brevity-capi -E 'test(everything_is_made_from_the_list)'"
    );
}
