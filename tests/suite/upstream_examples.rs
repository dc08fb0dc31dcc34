//! A checkout of the Flux Operator's repository, if `TRIBUTARY_UPSTREAM` names one: its definition of MiniClusters has
//! the fields of our table, and its examples are kept whole and carried out, but for those that are listed.

use std::collections::BTreeSet;

use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, render};
use tributary_tests::corpus::Document;
use tributary_tests::upstream::{self, Checkout, Example, Exception};

use crate::corpus::{losses, older_troubles};
use crate::generated::current;

#[test]
fn the_definition_that_is_built_of_the_table_has_its_fields() {
    let definition = upstream::definition().unwrap();
    assert_eq!(upstream::rows(&definition).unwrap(), upstream::table().unwrap());
}

#[test]
fn what_the_table_cannot_say_is_found() {
    for (keyword, value) in [("pattern", "^a"), ("format", "email"), ("type", "number")] {
        let mut definition = upstream::definition().unwrap();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/archive/properties/path";
        definition.pointer_mut(schema).unwrap()[keyword] = value.into();
        let error = upstream::rows(&definition).unwrap_err();
        assert!(format!("{error:#}").starts_with("spec.archive.path: "), "{keyword}: {error:#}");
    }
}

#[test]
fn the_table_of_upstreams_fields_is_current() {
    let Some(checkout) = Checkout::find("whether upstream's fields are still those of the table").unwrap() else {
        return;
    };
    let definition = checkout.definition().unwrap();
    // Before v1alpha2 there was another table.
    if definition["spec"]["versions"][0]["name"] == "v1alpha1" {
        return;
    }
    current("tests/corpus/upstream-fields.tsv", &upstream::rows(&definition).unwrap());
    let built = upstream::definition().unwrap();
    for key in ["group", "scope", "names"] {
        assert_eq!(built["spec"][key], definition["spec"][key], "{key}");
    }
    for key in ["served", "storage", "subresources"] {
        assert_eq!(built["spec"]["versions"][0][key], definition["spec"]["versions"][0][key], "{key}");
    }
}

#[test]
fn the_list_of_upstreams_examples_with_exceptions_is_current() {
    let Some(checkout) = Checkout::find("whether upstream's examples are kept whole and carried out").unwrap() else {
        return;
    };
    let examples = checkout.examples().unwrap();
    let mut rows: Vec<Exception> = examples.iter().flat_map(exceptions).collect();
    // Of other versions of the repository: this checkout does not have them.
    let here: BTreeSet<_> = examples.iter().map(|one| (one.version.as_str(), one.file.as_str())).collect();
    let known = upstream::exceptions().unwrap_or_default().into_iter();
    rows.extend(known.filter(|row| !here.contains(&(row.version.as_str(), row.file.as_str()))));
    rows.sort();
    let lines = rows.iter().map(|row| [&row.version, &row.file, &row.what, &row.words].map(String::as_str).join("\t"));
    let lines: Vec<String> = std::iter::once("version\tfile\twhat\twords".to_owned()).chain(lines).collect();
    current("tests/corpus/upstream-exceptions.tsv", &(lines.join("\n") + "\n"));
}

fn exceptions(example: &Example) -> Vec<Exception> {
    let mut found = Vec::new();
    let mut add = |what: &str, words: String| {
        let (version, file) = (example.version.clone(), example.file.clone());
        found.push(Exception { version, file, what: what.to_owned(), words: words.replace('\n', "; ") });
    };
    let documents = match &example.documents {
        Ok(documents) => documents.as_slice(),
        Err(error) => {
            // Without the place and the lines around it.
            add("unread", error.root_cause().to_string().split(',').next().unwrap_or_default().to_owned());
            &[]
        }
    };
    for document in documents {
        let (lost, refused) = match example.version.as_str() {
            "v1alpha1" => older_troubles(&document.value),
            _ => (losses(&document.value), refusal(document)),
        };
        lost.into_iter().for_each(|words| add("lost", words));
        refused.into_iter().for_each(|words| add("refused", words));
    }
    found
}

fn refusal(document: &Document) -> Option<String> {
    let mut mini_cluster: MiniCluster = serde_json::from_value(document.value.clone()).ok()?;
    mini_cluster.metadata.namespace.get_or_insert_with(|| "default".to_owned());
    mini_cluster.metadata.uid = Some("uid".to_owned());
    render(&mini_cluster, &Context::default()).err().map(|problems| problems.to_string())
}
