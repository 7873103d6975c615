// SPDX-License-Identifier: Apache-2.0
// out[b, t, h, d] = x[b, t, h, d] + table[index[b, t], h, d]: rows of a table gathered by an index view, on a 2 x 8 grid
// of (batch, head).

#x = affine_set<(d0, d1, d2, d3) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 31 >= 0, d2 >= 0, -d2 + 7 >= 0, d3 >= 0, -d3 + 127 >= 0)>
#table = affine_set<(d0, d1, d2) : (d0 >= 0, -d0 + 99 >= 0, d1 >= 0, -d1 + 7 >= 0, d2 >= 0, -d2 + 127 >= 0)>
#index = affine_set<(d0, d1) : (d0 >= 0, -d0 + 1 >= 0, d1 >= 0, -d1 + 31 >= 0)>
#xt = affine_set<(d0, d1, d2, d3) : (d0 == 0, d1 >= 0, -d1 + 31 >= 0, d2 == 0, d3 >= 0, -d3 + 127 >= 0)>
#gather = affine_set<(d0, d1) : (d0 >= 0, -d0 + 31 >= 0, d1 >= 0, -d1 + 127 >= 0)>
#order2 = affine_map<(d0, d1) -> (d0, d1)>
#order4 = affine_map<(d0, d1, d2, d3) -> (d0, d1, d2, d3)>

func.func @indexed_add(%x: index, %table: index, %index: index, %out: index) attributes {grid = [2, 8]} {
  %zero = arith.constant 0 : index
  %b, %h = ktdp.get_compute_tile_id : index, index
  %X = ktdp.construct_memory_view %x, sizes: [2, 32, 8, 128], strides: [32768, 1024, 128, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<2x32x8x128xf16>
  %T = ktdp.construct_memory_view %table, sizes: [100, 8, 128], strides: [1024, 128, 1] {coordinate_set = #table, memory_space = #ktdp.memory_space<global>} : memref<100x8x128xf16>
  %I = ktdp.construct_memory_view %index, sizes: [2, 32], strides: [32, 1] {coordinate_set = #index, memory_space = #ktdp.memory_space<global>} : memref<2x32xsi32>
  %O = ktdp.construct_memory_view %out, sizes: [2, 32, 8, 128], strides: [32768, 1024, 128, 1] {coordinate_set = #x, memory_space = #ktdp.memory_space<global>} : memref<2x32x8x128xf16>
  %xt = ktdp.construct_access_tile %X[%b, %zero, %h, %zero] {access_tile_set = #xt, access_tile_order = #order4} : memref<2x32x8x128xf16> -> <1x32x1x128xindex>
  %ot = ktdp.construct_access_tile %O[%b, %zero, %h, %zero] {access_tile_set = #xt, access_tile_order = #order4} : memref<2x32x8x128xf16> -> <1x32x1x128xindex>
  %tt = ktdp.construct_indirect_access_tile intermediate_variables(%t, %d) %T[ind(%I[%b, %t]), (%h), (%d)] {variables_space_set = #gather, variables_space_order = #order2} : memref<100x8x128xf16>, memref<2x32xsi32> -> <32x128xindex>
  %v = ktdp.load %xt : <1x32x1x128xindex> -> tensor<1x32x1x128xf16>
  %g = ktdp.load %tt : <32x128xindex> -> tensor<32x128xf16>
  %v2 = tensor.collapse_shape %v [[0, 1], [2, 3]] : tensor<1x32x1x128xf16> into tensor<32x128xf16>
  %s = arith.addf %v2, %g : tensor<32x128xf16>
  %s4 = tensor.expand_shape %s [[0, 1], [2, 3]] output_shape [1, 32, 1, 128] : tensor<32x128xf16> into tensor<1x32x1x128xf16>
  ktdp.store %s4, %ot : tensor<1x32x1x128xf16>, <1x32x1x128xindex>
  return
}
