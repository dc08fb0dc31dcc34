//! The RESTful server: what a line of its Secret can hold, what git understands, and what the server itself takes.

use std::collections::BTreeSet;

use tributary_api::minicluster::{DEFAULT_RESTFUL_USER, FluxRestful, MiniClusterSpec};

use super::{Problem, names, reason};
use crate::flux_files::BROKER_PORT;
use crate::scripts::{ENDS_PORT, QUEUE_PORT};

/// Most bytes of a password that bcrypt reads; the server takes no longer ones.
const LONGEST_PASSWORD: usize = 72;

pub(super) fn problems(spec: &MiniClusterSpec) -> Vec<Problem> {
    let Some(restful) = &spec.flux_restful else { return Vec::new() };
    let mut problems = Vec::new();
    let mut refuse = |field: &str, reason, message: String| problems.push(Problem::new(field, reason, message));
    if !is_one_word(restful.branch()) || restful.branch().starts_with('-') {
        let message = format!("{:?} is no name of a branch", restful.branch());
        refuse("spec.fluxRestful.branch", reason::INVALID_VALUE, message);
    }
    if !(1..=65535).contains(&restful.port()) {
        let message = format!("{} is no port: 1 to 65535 are", restful.port());
        refuse("spec.fluxRestful.port", reason::INVALID_VALUE, message);
    }
    let own =
        [(BROKER_PORT, "brokers"), (ENDS_PORT, "ends of the tunnel"), (QUEUE_PORT, "program that tells of the queue")];
    if let Some((port, of)) = own.into_iter().find(|(port, _)| restful.port() == i32::from(*port)) {
        let message = format!("{port} is the port of the {of}: choose another one");
        refuse("spec.fluxRestful.port", reason::INVALID_VALUE, message);
    }
    problems.extend(names::object("spec.fluxRestful.secretName", restful.secret_name.as_deref()));
    problems.extend(if restful.secret_name.is_some() { beside_secret(spec, restful) } else { users(spec, restful) });
    problems
}

/// Who may use the server is said in one place.
fn beside_secret(spec: &MiniClusterSpec, restful: &FluxRestful) -> Vec<Problem> {
    let written = [
        ("spec.fluxRestful.username", restful.username.is_some()),
        ("spec.fluxRestful.token", restful.token.is_some()),
        ("spec.fluxRestful.secretKey", restful.secret_key.is_some()),
        ("spec.users", !spec.users.is_empty()),
    ];
    let conflict = |(field, _)| {
        let message = "the Secret of secretName says who may use the server: write it there, and leave this out";
        Problem::new(field, reason::CONFLICTING_FIELDS, message)
    };
    written.into_iter().filter(|(_, written)| *written).map(conflict).collect()
}

/// Names and passwords; the sentences never show a password.
fn users(spec: &MiniClusterSpec, restful: &FluxRestful) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut check = |field: String, text: &str, longest: usize| {
        if !is_one_word(text) || text.len() > longest {
            let message = format!("it has to be one word of at most {longest} bytes");
            problems.push(Problem::new(field, reason::INVALID_VALUE, message));
        }
    };
    let first = restful.username.as_deref().unwrap_or(DEFAULT_RESTFUL_USER);
    let mut names = BTreeSet::from([first]);
    check("spec.fluxRestful.username".to_owned(), first, LONGEST_PASSWORD);
    if let Some(token) = &restful.token {
        check("spec.fluxRestful.token".to_owned(), token, LONGEST_PASSWORD);
    }
    let mut twice = Vec::new();
    for (index, user) in spec.users.iter().enumerate() {
        let field = format!("spec.users[{index}].name");
        check(field.clone(), &user.name, LONGEST_PASSWORD);
        if let Some(password) = &user.password {
            check(format!("spec.users[{index}].password"), password, LONGEST_PASSWORD);
        }
        if !names.insert(&user.name) {
            let message = format!("there is a user {:?} already: give each a name of its own", user.name);
            twice.push(Problem::new(field, reason::CONFLICTING_FIELDS, message));
        }
    }
    problems.extend(twice);
    problems
}

fn is_one_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(spec: &str) -> Vec<String> {
        problems(&serde_saphyr::from_str(spec).unwrap()).iter().map(|problem| problem.field.clone()).collect()
    }

    #[test]
    fn what_the_server_would_refuse_is_refused_before() {
        let good = [
            "{}",
            "{fluxRestful: {}}",
            "{fluxRestful: {token: -t, branch: add/pam}, users: [{name: ann, password: -x}, {name: bob}]}",
            "{fluxRestful: {secretName: mine, port: 5050}}",
            // Nobody's users: said elsewhere.
            "{users: [{name: a b}]}",
        ];
        for spec in good {
            assert_eq!(found(spec), Vec::<String>::new(), "{spec}");
        }
        let bad = [
            ("{fluxRestful: {branch: --upload-pack=sh}}", "spec.fluxRestful.branch"),
            ("{fluxRestful: {branch: a b}}", "spec.fluxRestful.branch"),
            ("{fluxRestful: {port: 65536}}", "spec.fluxRestful.port"),
            ("{fluxRestful: {port: 8050}}", "spec.fluxRestful.port"),
            ("{fluxRestful: {port: 8051}}", "spec.fluxRestful.port"),
            ("{fluxRestful: {port: 8052}}", "spec.fluxRestful.port"),
            ("{fluxRestful: {username: a b}}", "spec.fluxRestful.username"),
            ("{fluxRestful: {token: \"a\\n\"}}", "spec.fluxRestful.token"),
            ("{fluxRestful: {secretName: A}}", "spec.fluxRestful.secretName"),
            ("{fluxRestful: {secretName: a, token: t}}", "spec.fluxRestful.token"),
            ("{fluxRestful: {secretName: a}, users: [{name: ann}]}", "spec.users"),
            ("{fluxRestful: {}, users: [{name: ''}]}", "spec.users[0].name"),
            ("{fluxRestful: {}, users: [{name: flux}]}", "spec.users[0].name"),
            ("{fluxRestful: {}, users: [{name: ann}, {name: ann}]}", "spec.users[1].name"),
            ("{fluxRestful: {}, users: [{name: ann, password: a b}]}", "spec.users[0].password"),
        ];
        for (spec, field) in bad {
            assert_eq!(found(spec), [field], "{spec}");
        }
        let long = format!("{{fluxRestful: {{token: {}}}}}", "t".repeat(73));
        let spec: MiniClusterSpec = serde_saphyr::from_str(&long).unwrap();
        let shown = format!("{:?}", problems(&spec));
        assert!(shown.contains("72 bytes") && !shown.contains("ttt"), "{shown}");
    }
}
