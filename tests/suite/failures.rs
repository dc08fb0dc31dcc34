//! Every failure that `agentctl` reports: what failed, and what is hinted at. Read from the sources, so that none is
//! forgotten; how they look is shown by the tests of each command.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use syn::visit::{self, Visit};

use tributary_agentctl::cli::Cli;

use crate::generated::repository;

/// Failures of this program itself, or of the machine, about which its user can do nothing that a line could say. Whatever
/// else fails has a hint.
const WITHOUT_HINT: [&str; 6] = [
    "commands/demo/mod.rs perform",
    "commands/demo/mod.rs status",
    "commands/usage.rs incomplete",
    "document.rs json",
    "document.rs yaml",
    "lib.rs run",
];

/// What one function says.
#[derive(Default)]
struct Said {
    failures: Vec<String>,
    hints: Vec<String>,
}

#[derive(Default)]
struct Reader {
    functions: BTreeMap<String, Said>,
    inside: Vec<String>,
}

impl Reader {
    fn within(&mut self, name: &syn::Ident, visit: impl FnOnce(&mut Self)) {
        self.inside.push(name.to_string());
        visit(self);
        self.inside.pop();
    }

    fn said(&mut self) -> &mut Said {
        self.functions.entry(self.inside.join("::")).or_default()
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.within(&function.sig.ident, |reader| visit::visit_item_fn(reader, function));
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.within(&function.sig.ident, |reader| visit::visit_impl_item_fn(reader, function));
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(path) = &*call.func {
            let names: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            if names.ends_with(&["Failure".to_owned(), "new".to_owned()]) {
                let text = call.args.first().map(text).unwrap_or_default();
                self.said().failures.push(text);
            }
            if names.ends_with(&["failed".to_owned()]) && call.args.len() == 2 {
                let [what, hint] = [0, 1].map(|index| text(&call.args[index]));
                self.said().failures.push(what);
                self.said().hints.push(hint);
            }
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "hint"
            && let Some(hint) = call.args.first()
        {
            let hint = text(hint);
            self.said().hints.push(hint);
        }
        visit::visit_expr_method_call(self, call);
    }
}

/// A literal, the format of a `format!`, or `…` for what is put together elsewhere.
fn text(expression: &syn::Expr) -> String {
    let literal = match expression {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
        syn::Expr::Macro(call) => {
            let first = call.mac.tokens.clone().into_iter().next();
            first.and_then(|first| syn::parse2::<syn::LitStr>(first.into()).ok()).map(|text| text.value())
        }
        _ => None,
    };
    literal.unwrap_or_else(|| "…".to_owned())
}

/// Whether a command is in the middle of a sentence, where neither its end nor its cluster can be told.
fn is_command(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    let agentctl = Cli::command();
    let of_kubectl = ["apply", "auth", "create", "delete", "describe", "get", "logs", "patch"];
    words.windows(2).any(|pair| {
        let verb = pair[1].trim_matches([',', '.', ';', ')', ':']);
        match pair[0].trim_start_matches('(') {
            "agentctl" => agentctl.find_subcommand(verb).is_some(),
            "kubectl" => of_kubectl.contains(&verb),
            _ => false,
        }
    })
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            into.push(path);
        }
    }
}

#[test]
fn every_failure_says_what_failed_and_what_can_be_done() {
    let root = repository().join("agent/agentctl/src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    files.sort();
    let (mut lines, mut bare, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for file in files {
        let mut reader = Reader::default();
        reader.visit_file(&syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap());
        for (function, Said { failures, hints }) in reader.functions {
            if failures.is_empty() {
                continue;
            }
            let place = format!("{} {function}", file.strip_prefix(&root).unwrap().display());
            lines.push(place.clone());
            lines.extend(failures.iter().map(|failure| format!("    error: {failure}")));
            lines.extend(hints.iter().map(|hint| format!("    hint: {hint}")));
            let outside = hints.iter().flat_map(|hint| hint.split('`').step_by(2));
            commands.extend(outside.filter(|text| is_command(text)).map(|text| format!("{place}: {text}")));
            if hints.is_empty() {
                lines.push("    (no hint here)".to_owned());
                bare.push(place);
            }
        }
    }
    assert!(lines.len() > 100, "{lines:#?}");
    assert_eq!(bare, WITHOUT_HINT, "say what can be done about it");
    assert!(commands.is_empty(), "only what stands in backquotes can be pasted: {commands:#?}");
    insta::assert_snapshot!(lines.join("\n"));
}
