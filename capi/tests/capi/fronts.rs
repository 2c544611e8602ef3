//! The dense collectives of C beside those of Rust: what one has, the other has.

use std::collections::BTreeSet;

use brevity_collectives::{FORMS, Form};

use crate::list::{ALL, Entry, Parameter};

/// The method of Rust that goes from one vector to another as a function of C does, and that in place.
fn methods_of(entry: &Entry) -> (Option<String>, String) {
    let has_input = entry.parameters.iter().any(|parameter| matches!(parameter, Parameter::In(_)));
    let name = entry.name;
    match name {
        "all_reduce" => (Some(format!("{name}_to")), name.into()),
        "broadcast_to" => (Some(name.into()), "broadcast".into()),
        _ if !has_input => (None, name.into()),
        _ => (Some(name.into()), format!("{name}_in_place")),
    }
}

#[test]
fn every_dense_collective_is_in_rust_and_in_c() {
    let of_rust = || FORMS.into_iter().flatten();
    for Form { name, start, .. } in of_rust() {
        assert_eq!(*start, format!("start_{name}"));
    }
    let in_rust: BTreeSet<(String, bool)> =
        of_rust().map(|form| (form.name.to_owned(), form.is_in_place)).collect();
    assert_eq!(in_rust.len(), of_rust().count(), "a form is listed twice");
    let mut in_c = BTreeSet::new();
    // The barrier of Rust has no vectors, and is written by hand.
    for entry in ALL.iter().filter(|entry| entry.name != "barrier") {
        let (apart, in_place) = methods_of(entry);
        in_c.extend(apart.map(|name| (name, false)));
        in_c.insert((in_place, true));
    }
    assert_eq!(in_c, in_rust, "C, and Rust: a collective is missing on one side");
}
