//! `MiniCluster`: `flux-framework.org/v1alpha1`, the version before.
//!
//! All fields as upstream last had them, and those of its earlier forms that examples still show (`podLabels`, `class`,
//! `preCommand`, `fluxOptionFlags`, …). There is a schema and no type: nothing is carried out from here. Objects are stored
//! as v1alpha2, and [`convert`](fn@convert) goes both ways without a loss.
//!
//! | file | what is in it |
//! |---|---|
//! | `spec.json` | the schema of the spec, which does not change any more |
//! | `rules` | which field becomes which, where that is not the same name |
//! | `kept` | what the other version has no field for, as an annotation |
//! | `guard` | a policy of the API server for as long as nobody converts |
//! | `shape` | defaults and unknown fields, as the API server treats them |

mod convert;
mod guard;
mod kept;
mod rules;
mod shape;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use serde_json::Value;

pub use self::convert::{KEPT, V1ALPHA1, V1ALPHA2, convert, convert_where, without_spec};
pub use self::guard::guard;

/// The schema of `spec`. Services are containers too: the file describes a container once.
pub(crate) fn spec() -> JSONSchemaProps {
    let mut schema: Value = serde_json::from_str(include_str!("spec.json")).expect("the file is JSON");
    let container = schema["properties"]["containers"]["items"].clone();
    schema["properties"]["services"]["items"] = container;
    serde_json::from_value(schema).expect("the file is a schema")
}

#[cfg(test)]
mod tests;
